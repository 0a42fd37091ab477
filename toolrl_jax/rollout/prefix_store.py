"""Keys and values of earlier conversations, kept for their next turn.

From token ids with keys and values to the longest stored beginning of a
prompt, on the host, within a budget of tokens. It does not know whose weights
made the numbers: its owner clears it when they change.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from toolrl_jax.rollout import prompts
from toolrl_jax.rollout.request import Group


class Stored(NamedTuple):
  """A stored conversation, or as much of it as a prompt begins with.

  Attributes:
    token_ids: Its tokens, int32 [n].
    k: Keys of all layers, [L, n, N, H].
    v: Values of all layers.
    num_tokens: How many of the tokens are meant.
    conversation: Whose tokens they are; another conversation does not see
      them. "" is everybody's.
  """

  token_ids: Int[np.ndarray, " n"]
  k: Float[np.ndarray, "L n N H"]
  v: Float[np.ndarray, "L n N H"]
  num_tokens: int
  conversation: str = ""


class PrefixStore:
  """Keeps the conversations that were used last.

  Attributes:
    budget_tokens: Most tokens that are kept; 0 keeps nothing.
    num_tokens: Tokens that are kept.
  """

  def __init__(self, budget_tokens: int):
    self.budget_tokens = budget_tokens
    self.num_tokens = 0
    # In the order of their last use. Few and long, so looked through one by
    # one.
    self._entries: list[Stored] = []

  def clear(self) -> None:
    """Forgets everything."""
    self._entries, self.num_tokens = [], 0

  def find(
    self, prompt_ids: Int[np.ndarray, " n"], conversation: str = ""
  ) -> Stored | None:
    """Returns the entry that shares the longest beginning with a prompt.

    The last token of a prompt is never taken from the store: it has to run,
    for its logits.

    Args:
      prompt_ids: Real tokens of the prompt.
      conversation: Only its own entries are looked at.

    Returns:
      The entry with the number of shared tokens, or None when none is shared.
    """
    longest, found = 0, -1
    for index, entry in enumerate(self._entries):
      if entry.conversation != conversation:
        continue
      shared = _num_shared(entry.token_ids, prompt_ids[:-1])
      # Of equals the one used last.
      if shared and shared >= longest:
        longest, found = shared, index
    if not longest:
      return None
    entry = self._entries.pop(found)
    self._entries.append(entry)
    return entry._replace(num_tokens=longest)

  def add(
    self,
    token_ids: Int[np.ndarray, " n"],
    k: Float[np.ndarray, "L n N H"],
    v: Float[np.ndarray, "L n N H"],
    conversation: str = "",
  ) -> None:
    """Keeps a conversation; what it continues is replaced by it.

    Args:
      token_ids: Its tokens.
      k: Their keys of all layers.
      v: Their values.
      conversation: Whose they are.
    """
    count = len(token_ids)
    if count > self.budget_tokens:
      return
    new = Stored(token_ids, k, v, count, conversation)
    kept = [
      entry
      for entry in self._entries
      if entry.conversation != conversation
      or _num_shared(entry.token_ids, token_ids) < entry.num_tokens
    ]
    self._entries = [*kept, new]
    self.num_tokens = sum(entry.num_tokens for entry in self._entries)
    while self.num_tokens > self.budget_tokens:
      self.num_tokens -= self._entries.pop(0).num_tokens

  def plan(self, groups: Sequence[Group]) -> None:
    """Gives each group the stored beginning of its prompt, if it pays."""
    for group in groups:
      stored = self.find(
        group.prompt_ids[: group.prompt_length], group.conversation
      )
      if stored is None:
        continue
      num_new = group.prompt_length - stored.num_tokens
      if prompts.extension_size(num_new) < len(group.prompt_ids):
        group.stored = stored

  def keep(self, groups: Sequence[Group]) -> None:
    """Adds what each request of finished groups kept, in their order."""
    for group in groups:
      prompt_ids = group.prompt_ids[: group.prompt_length]
      for request in group.requests:
        if request.kept is not None:
          ids = np.concatenate([prompt_ids, request.columns()[0]])
          self.add(ids, *request.kept, group.conversation)


def _num_shared(left: np.ndarray, right: np.ndarray) -> int:
  """Returns the length of the longest common beginning."""
  size = min(len(left), len(right))
  is_equal = left[:size] == right[:size]
  return size if is_equal.all() else int(is_equal.argmin())
