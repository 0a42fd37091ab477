"""Records that cross stages, and the dimension letters they share.

Dimension letters, everywhere in the package:

    B prompts (groups) in a step      G rollouts of a prompt
    S rollouts kept for the update    P prompt tokens (bucket)
    T completion tokens (bucket)      C calls    K arguments of a call
    R decode rows (slots)             L layers   D width    V vocabulary

Host records hold Python or numpy values; batch records hold numpy arrays on
the host and jax arrays on devices.
"""

import enum
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

GoldKind = Literal["calls", "response", "both", "none"]

FINISH_STOP = 0
FINISH_LENGTH = 1


class ToolCall(NamedTuple):
  """One call of one tool.

  Attributes:
    name: Tool name; an opaque string, no identifier rules.
    arguments: Parameter name to JSON value.
  """

  name: str
  arguments: Mapping[str, Any]


class Gold(NamedTuple):
  """What a right answer holds.

  Attributes:
    calls: Gold calls; empty when the right answer calls no tool.
    response: Gold answer text, or None when the gold has no answer part.
  """

  calls: tuple[ToolCall, ...] = ()
  response: str | None = None

  @property
  def kind(self) -> GoldKind:
    """Which fields a right completion shows."""
    if self.calls:
      return "calls" if self.response is None else "both"
    return "none" if self.response is None else "response"


class Example(NamedTuple):
  """One training or evaluation prompt with its gold.

  Attributes:
    id: Stable over epochs and runs; `<trajectory>/<step>` for a cut
      trajectory. The streak filter keys on it.
    messages: History without the answer: dicts with `role` (`system`, `user`,
      `assistant`, `tool`), `content`, and for assistant turns optionally
      `think` and `calls` (a tuple of ToolCall).
    tools: Tool documents: `name`, `description`, `parameters` (JSON schema).
    gold: The right answer.
    verbatim: The exact [system, user] messages of a row that came rendered in
      the ToolRL layout; None for other rows.
  """

  id: str
  messages: tuple[Mapping[str, Any], ...]
  tools: tuple[Mapping[str, Any], ...]
  gold: Gold
  verbatim: tuple[Mapping[str, str], ...] | None = None


class PromptBatch(NamedTuple):
  """Prompts of one step, padded on the right to one bucket.

  Attributes:
    prompt_ids: Token ids, int32 [B, P]; padding is 0.
    prompt_length: Real tokens of each prompt, int32 [B], at least 1.
    is_real: False for groups that only fill a short batch, bool [B].
  """

  prompt_ids: Int[np.ndarray, "B P"]
  prompt_length: Int[np.ndarray, " B"]
  is_real: Bool[np.ndarray, " B"]


class Rollouts(NamedTuple):
  """Completions of one step, padded on the right to one bucket.

  Attributes:
    completion_ids: Token ids with the stop token, int32 [B, G, T]; padding 0.
    completion_mask: True on real tokens, bool [B, G, T].
    logprobs: Log-probability in nats of each token under the full
      distribution at the sampling temperature, float32 [B, G, T]; padding 0.
    truncated_logprobs: The same under the top-p / top-k truncated distribution
      that was sampled from; equals `logprobs` when neither is on.
    finish: FINISH_STOP or FINISH_LENGTH, int32 [B, G].
  """

  completion_ids: Int[np.ndarray, "B G T"]
  completion_mask: Bool[np.ndarray, "B G T"]
  logprobs: Float[np.ndarray, "B G T"]
  truncated_logprobs: Float[np.ndarray, "B G T"]
  finish: Int[np.ndarray, "B G"]


class UpdateBatch(NamedTuple):
  """What one update consumes: groups of kept rollouts, the prompt once.

  Attributes:
    prompt_ids: Token ids, int32 [B, P], right-padded with 0.
    prompt_length: Real prompt tokens, int32 [B], at least 1.
    completion_ids: Token ids, int32 [B, S, T], right-padded with 0.
    completion_mask: True on real completion tokens, bool [B, S, T].
    old_logprobs: Of the policy that starts the update, float32 [B, S, T].
    rollout_logprobs: As recorded by the sampler, float32 [B, S, T].
    reference_logprobs: Of the reference policy, float32 [B, S, T]; zeros when
      no KL term is on.
    advantage: Advantage of each kept rollout, float32 [B, S].
    weight: Weight of each rollout's loss and of its part in the divisor,
      float32 [B, S]; 0 leaves the rollout out.
  """

  prompt_ids: Int[Array | np.ndarray, "B P"]
  prompt_length: Int[Array | np.ndarray, " B"]
  completion_ids: Int[Array | np.ndarray, "B S T"]
  completion_mask: Bool[Array | np.ndarray, "B S T"]
  old_logprobs: Float[Array | np.ndarray, "B S T"]
  rollout_logprobs: Float[Array | np.ndarray, "B S T"]
  reference_logprobs: Float[Array | np.ndarray, "B S T"]
  advantage: Float[Array | np.ndarray, "B S"]
  weight: Float[Array | np.ndarray, "B S"]


class ParseStatus(enum.IntEnum):
  """What became of the calls in one completion.

  Attributes:
    OK: A call block was there and every call in it was read.
    NO_CALL: No call tag was there.
    UNCLOSED: A call tag lacks its partner.
    BAD_JSON: A call is not JSON, or holds a number too long to read.
    NOT_OBJECT: A call is JSON but no object.
    BAD_NAME: A call has no name, or one that is no string.
    NO_ARGUMENTS: All calls have a name, but one lacks its object of arguments.
    TOO_DEEP: A call nests deeper than any sensible argument.
  """

  OK = 0
  NO_CALL = 1
  UNCLOSED = 2
  BAD_JSON = 3
  NOT_OBJECT = 4
  BAD_NAME = 5
  NO_ARGUMENTS = 6
  TOO_DEEP = 7


class CallShape(enum.IntEnum):
  """Which keys the object of one call had.

  Attributes:
    PLAIN: Name and arguments, nothing else.
    EXTRA: Name, arguments and further keys.
    NO_ARGUMENTS: A name, but no object of arguments.
  """

  PLAIN = 0
  EXTRA = 1
  NO_ARGUMENTS = 2


class ParsedCompletion(NamedTuple):
  """What a completion says, read without ever raising.

  Attributes:
    status: What became of the calls.
    calls: The calls in order; empty unless `status` is OK or NO_ARGUMENTS.
    call_shapes: Shape of each call.
    response: Answer text, or None when there is none.
    num_think_words: Words, split at white space, between the last opening
      think tag and the next closing one; 0 when either is missing.
    has_think: Both think tags occur.
    formats_one: Kinds of gold whose format this completion has, with exactly
      one newline after the closing think tag.
    formats_one_or_two: The same with one or two newlines.
  """

  status: ParseStatus
  calls: tuple[ToolCall, ...]
  call_shapes: tuple[CallShape, ...]
  response: str | None
  num_think_words: int
  has_think: bool
  formats_one: frozenset[GoldKind]
  formats_one_or_two: frozenset[GoldKind]

  @property
  def has_call(self) -> bool:
    """Whether the completion tries to call a tool."""
    return self.status != ParseStatus.NO_CALL

  @property
  def is_parsed(self) -> bool:
    """Whether nothing in the completion was unreadable."""
    return self.status in (ParseStatus.OK, ParseStatus.NO_CALL)


class EncodedCalls(NamedTuple):
  """Calls as integers that mean something within one prompt only.

  Slot k of a prompt is the k-th distinct argument key of its gold calls. Calls
  whose name no gold call has, and copies that no matching can use, are left
  out of the rows and counted in `num_calls` and `num_names`. The leading
  dimensions `...` are those of the batch; none for one completion.

  Attributes:
    name_ids: Id of each call's name, int32 [..., C]; padding is -1.
    value_ids: Id of the value in each slot, int32 [..., C, K]; -1 where the
      call lacks the key, -2 where no gold call holds that value.
    num_arguments: Arguments of each call, those outside the slots included,
      int32 [..., C]; -1 for a call without an object of arguments.
    key_order_ids: Id of each call's list of keys in order, int32 [..., C]; -2
      where no gold call has that list.
    is_plain: The call had no further keys, bool [..., C].
    num_calls: Calls in all, int32 [...].
    num_names: Distinct names in all, int32 [...].
  """

  name_ids: Int[Array | np.ndarray, "... C"]
  value_ids: Int[Array | np.ndarray, "... C K"]
  num_arguments: Int[Array | np.ndarray, "... C"]
  key_order_ids: Int[Array | np.ndarray, "... C"]
  is_plain: Bool[Array | np.ndarray, "... C"]
  num_calls: Int[Array | np.ndarray, "..."]
  num_names: Int[Array | np.ndarray, "..."]


class CompletionFlags(NamedTuple):
  """What the reward needs of a completion beside its calls.

  Attributes:
    is_format_right: The completion has the format its gold asks for.
    is_readable: The calls could be read.
    has_call: The completion tries to call a tool.
    has_think: Both think tags occur.
    num_think_words: Words inside the think tags, int32, at least 0.
  """

  is_format_right: Bool[Array | np.ndarray, "..."]
  is_readable: Bool[Array | np.ndarray, "..."]
  has_call: Bool[Array | np.ndarray, "..."]
  has_think: Bool[Array | np.ndarray, "..."]
  num_think_words: Int[Array | np.ndarray, "..."]


class RewardParts(NamedTuple):
  """The reward of each completion and the terms it is the sum of.

  Attributes:
    total: format + correctness + length, float32.
    format: Format term, float32.
    correctness: Correctness term, float32.
    length: Length term, float32; 0 when it is off.
    success: Right in format and calls, whatever the scale, bool.
  """

  total: Float[Array | np.ndarray, "..."]
  format: Float[Array | np.ndarray, "..."]
  correctness: Float[Array | np.ndarray, "..."]
  length: Float[Array | np.ndarray, "..."]
  success: Bool[Array | np.ndarray, "..."]


class GroupAdvantage(NamedTuple):
  """Advantages of the kept rollouts of one prompt.

  Attributes:
    advantage: Dimensionless (reward units with std "none"), float32 [S].
    is_zero_variance: The rewards that the statistics are taken over are all
      equal, so the group carries no signal, bool.
  """

  advantage: Float[Array, "*batch S"]
  is_zero_variance: Bool[Array, "*batch"]


class Packing(NamedTuple):
  """Where the tokens of R blocks stand, packed (N, M) and padded (G, E).

  G counts the padded places of a block's prompts and completions in the order
  of the groups, E those of the completions alone. An index equal to the size
  of what it points into stands for nothing.

  Attributes:
    token_ids: Packed tokens, int32 [R, N].
    positions: Position of each in its own sequence, int32 [R, N].
    to_padded: Packed token of each padded place, int32 [R, G].
    to_packed: Padded place of each packed token, int32 [R, N].
    scored_ids: Completion tokens, int32 [R, M].
    predictor: Packed token whose hidden state predicts each, int32 [R, M].
    to_scores: Which of the M each padded completion place is, int32 [R, E].
  """

  token_ids: Int[Array | np.ndarray, "R N"]
  positions: Int[Array | np.ndarray, "R N"]
  to_padded: Int[Array | np.ndarray, "R G"]
  to_packed: Int[Array | np.ndarray, "R N"]
  scored_ids: Int[Array | np.ndarray, "R M"]
  predictor: Int[Array | np.ndarray, "R M"]
  to_scores: Int[Array | np.ndarray, "R E"]


class Rejected(NamedTuple):
  """A row that was left out.

  Attributes:
    id: Example id, or the file's name and row number.
    reason: Why, in one line.
  """

  id: str
  reason: str
