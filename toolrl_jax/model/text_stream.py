"""Token ids to text while they come: whole characters, and where to stop.

From the tokens of one completion, in order, to pieces of text that stay as
they are. Texts of special tokens are kept, as in training. Meant for
byte-level tokenizers, which all supported families have: there the text of
some tokens is that of their bytes, whatever stands before them. Knows neither
requests nor tool calls.
"""

from collections.abc import Sequence

import tokenizers

# What bytes become that are no UTF-8, or the beginning of a character only.
_REPLACEMENT = "\ufffd"


class TextStream:
  """Text of one completion, released as soon as it is certain.

  Attributes:
    text: What has been released; in the end the whole text.
    num_tokens: Tokens up to the end, the end token included.
    is_stopped: A stop text came; it and what follows is no part of the text.
  """

  def __init__(
    self,
    tokenizer: tokenizers.Tokenizer,
    *,
    end_ids: Sequence[int],
    stops: Sequence[str] = (),
  ):
    """Starts before the first token.

    Args:
      tokenizer: Turns ids into text; nobody else may change it meanwhile.
      end_ids: Tokens that end a completion and have no text.
      stops: Texts that end it, none empty.
    """
    self.text = ""
    self.num_tokens = 0
    self.is_stopped = False
    self._tokenizer = tokenizer
    self._end_ids, self._stops = frozenset(end_ids), tuple(stops)
    self._open_ids: list[int] = []  # they may end inside a character
    self._held = ""  # may be the beginning of a stop text

  def feed(self, token_ids: Sequence[int], *, is_end: bool = False) -> str:
    """Takes the next tokens and returns the text that they make certain.

    Args:
      token_ids: Tokens; those after a stop text are not counted.
      is_end: No more will come, so that all there is gets released.

    Returns:
      The new text, often shorter or longer than that of the tokens.
    """
    before = len(self.text)
    for token_id in token_ids:
      if self.is_stopped:
        break
      self.num_tokens += 1
      if token_id not in self._end_ids:
        self._open_ids.append(int(token_id))
        self._settle(is_end=False)
    if is_end and not self.is_stopped:
      self._settle(is_end=True)
    return self.text[before:]

  def _settle(self, *, is_end: bool) -> None:
    """Moves what is certain from tokens to held text, and on to `text`."""
    piece = self._tokenizer.decode(self._open_ids, skip_special_tokens=False)
    # A token may end inside a character, and a later one complete it.
    if is_end or not piece.endswith(_REPLACEMENT):
      self._held += piece
      self._open_ids = []
    found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
    if found:
      self.is_stopped = True
      self.text += self._held[: min(found)]
      self._held = ""
      return
    num_held = 0 if is_end else held_length(self._held, self._stops)
    certain = len(self._held) - num_held
    self.text += self._held[:certain]
    self._held = self._held[certain:]


def held_length(text: str, wanted: Sequence[str]) -> int:
  """Returns the length of the longest ending that may begin a wanted text.

  Args:
    text: Text that may go on.
    wanted: Texts that are looked for, none of which is in `text`.
  """
  longest = max(map(len, wanted), default=1) - 1
  for length in range(min(longest, len(text)), 0, -1):
    if any(one.startswith(text[-length:]) for one in wanted):
      return length
  return 0
