"""The forms in which tokens pass through JetStream's threads.

From a request to what `Engine.prefill` is given, and from a decoded chunk to
what the driver's detokenize thread reads. It knows nothing of devices.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import struct
from jaxtyping import Int

from toolrl_jax.rollout import jetstream_compat
from toolrl_jax.rollout import request as requests_lib


class RequestTokens(np.ndarray):
  """Prompt tokens that carry their request through JetStream's threads."""

  request: requests_lib.Request


def tokens_of(request: requests_lib.Request) -> RequestTokens:
  """Returns the padded prompt as an array that names its request."""
  tokens = request.group.prompt_ids.view(RequestTokens)
  tokens.request = request
  return tokens


@struct.dataclass
class ChunkTokens(jetstream_compat.engine_api.ResultTokens):
  """A chunk in JetStream's form: tokens | valid | length, on the host.

  Attributes:
    num_new: Tokens of each row in the chunk.
    is_ended: Rows whose request is over.
  """

  num_new: Any = struct.field(pytree_node=False)
  is_ended: Any = struct.field(pytree_node=False)

  def convert_to_numpy(self) -> "ChunkTokens":
    """Returns itself: the data is on the host already."""
    return self

  def get_result_at_slot(self, slot: int):
    """Returns a row's tokens, one invalid column more where it is over.

    JetStream completes a row at the first invalid column; without it a row
    that ends on the border of a chunk would idle through the next one.
    """
    count = self.num_new[slot]
    tokens = self.data[slot : slot + 1, :count]
    valid = np.ones_like(tokens)
    if self.is_ended[slot]:
      tokens = np.append(tokens, [[0]], axis=1)
      valid = np.append(valid, [[0]], axis=1)
    length = self.data[slot : slot + 1, self.length_idx[0]]
    return jetstream_compat.engine_api.SlotData(tokens, valid, length)


class StopTokenizer(jetstream_compat.tokenizer_api.Tokenizer):
  """Tells JetStream the stop tokens; text never reaches the driver."""

  def __init__(self, stop_ids: Sequence[int]):
    self._stop_ids = set(stop_ids)

  def encode(self, s: str, **kwargs):
    """Refuses: the driver takes token ids only."""
    del kwargs
    raise ValueError(f"prompts must be token ids, got text {s[:40]!r}.")

  def decode(self, token_ids: list[int], **kwargs) -> str:
    """Returns nothing: completions are decoded as a whole elsewhere."""
    del token_ids, kwargs
    return ""

  @property
  def pad_id(self) -> int:
    """Padding of prompts; an ordinary token in completions."""
    return 0

  @property
  def bos_id(self) -> int:
    """Never used: prompts come complete."""
    return 0

  @property
  def eos_id(self) -> int:
    """Never used: `stop_tokens` decides."""
    return 0

  @property
  def stop_tokens(self) -> set[int]:
    """Tokens that end a completion."""
    return self._stop_ids


def chunk_tokens(
  token_ids: Int[np.ndarray, "R K"],
  num_new: Int[np.ndarray, " R"],
  rows: Sequence[requests_lib.Request | None],
) -> ChunkTokens:
  """Forms JetStream's result of a chunk.

  Args:
    token_ids: Tokens of each row, from the left.
    num_new: How many of them each row has.
    rows: Request of each row, None where it is idle.

  Returns:
    The result; lengths never exceed a request's limit, or JetStream would
    drop the row's whole chunk.
  """
  width = token_ids.shape[1]
  valid = (np.arange(width) < num_new[:, None]).astype(np.int32)
  lengths = [0 if row is None else row.num_tokens for row in rows]
  data = np.concatenate(
    [token_ids, valid, np.array(lengths, np.int32)[:, None]], axis=1
  )
  return ChunkTokens(
    data=data,
    tokens_idx=(0, width),
    valid_idx=(width, 2 * width),
    length_idx=(2 * width, 2 * width + 1),
    samples_per_slot=1,
    num_new=num_new,
    is_ended=[row is not None and row.is_ended for row in rows],
  )
