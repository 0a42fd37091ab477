"""Turns examples into prompt token ids.

From `types.Example` to token ids; what a prompt shows is decided in
`data/templates.py`.

Text of a row is never control: where it holds the text of a special token
(`<|im_end|>`), that text is encoded as ordinary characters. Added tokens that
are not special (`<tool_call>` in Qwen's vocabulary) are encoded as usual, for
the ToolRL layout is made of them; so a row can still imitate such tags. This
module knows neither files nor rewards.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import jinja2
import transformers

from toolrl_jax import types
from toolrl_jax.data import templates

Overlong = Literal["drop", "truncate_left", "error"]

# Chat templates of Llama print today's date; a fixed one keeps a run the same
# on every day. Qwen's templates do not read it.
_DATE = "26 Jul 2024"


class EncodedPrompts(NamedTuple):
  """Prompts of a set of examples.

  Attributes:
    prompt_ids: Token ids of each kept example.
    kept: Position of each kept example in what was given.
    rejected: Examples that were left out, with the reason.
    truncated: Ids of kept examples whose oldest tokens were cut off.
  """

  prompt_ids: list[list[int]]
  kept: list[int]
  rejected: list[types.Rejected]
  truncated: list[str]


def encode_examples(
  examples: Sequence[types.Example],
  tokenizer: transformers.PreTrainedTokenizerBase,
  *,
  template: templates.Template = "toolrl",
  thinking: templates.Thinking = "official",
  system: str = "",
  max_prompt_tokens: int,
  overlong: Overlong = "drop",
) -> EncodedPrompts:
  """Encodes the prompt of each example and sorts out the over-long ones.

  Args:
    examples: Rows to encode.
    tokenizer: The checkpoint's, with its chat template.
    template: See `data/templates.py`.
    thinking: See `data/templates.py`.
    system: Extra system text after the row's own; empty is none.
    max_prompt_tokens: Longest prompt, at least 1.
    overlong: "drop" leaves a longer prompt out, "truncate_left" keeps its
      newest tokens, "error" refuses.

  Returns:
    Prompts, and what became of the others.

  Raises:
    ValueError: The tokenizer has no chat template, or an over-long prompt
      under "error".
  """
  encoded = EncodedPrompts([], [], [], [])
  for position, example in enumerate(examples):
    try:
      prompt_ids = encode(
        example, tokenizer, template=template, thinking=thinking, system=system
      )
    except templates.RowError as error:
      encoded.rejected.append(types.Rejected(example.id, str(error)))
      continue
    if len(prompt_ids) > max_prompt_tokens:
      reason = (
        f"prompt must have at most {max_prompt_tokens} tokens, has"
        f" {len(prompt_ids)}"
      )
      if overlong == "error":
        raise ValueError(
          f"example {example.id}: {reason}; raise"
          " config.data.max_prompt_tokens or set config.data.overlong."
        )
      if overlong == "drop":
        encoded.rejected.append(types.Rejected(example.id, reason))
        continue
      prompt_ids = prompt_ids[-max_prompt_tokens:]
      encoded.truncated.append(example.id)
    encoded.prompt_ids.append(prompt_ids)
    encoded.kept.append(position)
  return encoded


def encode(
  example: types.Example,
  tokenizer: transformers.PreTrainedTokenizerBase,
  *,
  template: templates.Template = "toolrl",
  thinking: templates.Thinking = "official",
  system: str = "",
) -> list[int]:
  """Encodes one prompt, up to where the completion begins.

  Args:
    example: Row to encode.
    tokenizer: The checkpoint's, with its chat template.
    template: See `data/templates.py`.
    thinking: See `data/templates.py`.
    system: Extra system text after the row's own; empty is none.

  Returns:
    Token ids, at least one.

  Raises:
    templates.RowError: The row cannot be shown under this template.
    ValueError: The tokenizer has no chat template.
  """
  return encode_next(
    example, tokenizer, template=template, thinking=thinking, system=system
  ).prompt_ids


class Started(NamedTuple):
  """The beginning of a conversation, as its tokens were.

  Attributes:
    text: Prompt and completion, the stop token left out.
    token_ids: The tokens that were run and sampled for it.
  """

  text: str
  token_ids: Sequence[int]


class NextPrompt(NamedTuple):
  """A prompt that may go on from an earlier one.

  Attributes:
    prompt_ids: Token ids.
    text: The same as text, for the next `Started`.
    is_extension: Whether the earlier tokens stand at its beginning.
  """

  prompt_ids: list[int]
  text: str
  is_extension: bool


def encode_next(
  example: types.Example,
  tokenizer: transformers.PreTrainedTokenizerBase,
  *,
  started: Started | None = None,
  template: templates.Template = "toolrl",
  thinking: templates.Thinking = "official",
  system: str = "",
  wrap_tools: bool = True,
) -> NextPrompt:
  """Encodes the next prompt of a conversation on top of its own tokens.

  Encoding a model's text again may cut it into other tokens than it sampled.
  Where the prompt begins with the earlier text, those tokens stay and only
  what follows is encoded; where the template changed the earlier text (thinking
  that is dropped, a dialogue in one user turn), all of it is.

  Args:
    example: History to encode; see `encode`.
    tokenizer: The checkpoint's, with its chat template.
    started: What was run and sampled before; None is nothing.
    template: See `data/templates.py`.
    thinking: See `data/templates.py`.
    system: Extra system text after the row's own; empty is none.
    wrap_tools: Whether the chat template gets a tool document inside
      {"type": "function", "function": ...}, as most expect it, or bare.

  Returns:
    The prompt.

  Raises:
    templates.RowError: The history cannot be shown under this template.
    ValueError: The tokenizer has no chat template.
  """
  pieces = _pieces(
    example,
    tokenizer,
    template=template,
    thinking=thinking,
    system=system,
    wrap_tools=wrap_tools,
  )
  text = "".join(piece for _, piece in pieces)
  before: list[int] = []
  if started is not None and text.startswith(started.text):
    before, pieces = [*started.token_ids], _after(pieces, len(started.text))
  prompt_ids = before + _encode_pieces(pieces, tokenizer)
  if not prompt_ids:
    raise templates.RowError("the chat template gives an empty prompt")
  return NextPrompt(prompt_ids, text, is_extension=bool(before))


def _after(
  pieces: Sequence[tuple[bool, str]], num_chars: int
) -> list[tuple[bool, str]]:
  """Drops so many characters from the front."""
  rest = []
  for is_literal, text in pieces:
    dropped = min(num_chars, len(text))
    num_chars -= dropped
    if dropped < len(text):
      rest.append((is_literal, text[dropped:]))
  return rest


def _encode_pieces(
  pieces: Sequence[tuple[bool, str]],
  tokenizer: transformers.PreTrainedTokenizerBase,
) -> list[int]:
  """Encodes pieces one after another, literal ones without special tokens."""
  prompt_ids: list[int] = []
  for is_literal, text in pieces:
    prompt_ids += tokenizer(
      text, add_special_tokens=False, split_special_tokens=is_literal
    )["input_ids"]
  return prompt_ids


def render(
  example: types.Example,
  tokenizer: transformers.PreTrainedTokenizerBase,
  *,
  template: templates.Template = "toolrl",
  thinking: templates.Thinking = "official",
  system: str = "",
) -> str:
  """Renders one prompt as text, for reading and logs.

  Encoding this text again is not safe where a row holds the text of a special
  token; `encode` is.

  Args:
    example: Row to render.
    tokenizer: The checkpoint's, with its chat template.
    template: See `data/templates.py`.
    thinking: See `data/templates.py`.
    system: Extra system text after the row's own; empty is none.

  Returns:
    The prompt.

  Raises:
    templates.RowError: The row cannot be shown under this template.
    ValueError: The tokenizer has no chat template.
  """
  pieces = _pieces(
    example, tokenizer, template=template, thinking=thinking, system=system
  )
  return "".join(text for _, text in pieces)


def _pieces(
  example: types.Example,
  tokenizer: transformers.PreTrainedTokenizerBase,
  *,
  template: templates.Template,
  thinking: templates.Thinking,
  system: str,
  wrap_tools: bool = True,
) -> list[tuple[bool, str]]:
  """Gives the prompt as (is_literal, text) pieces.

  Literal pieces are row text that spells a special token.
  """
  if tokenizer.chat_template is None:
    raise ValueError(
      "the tokenizer must have a chat template, but has none; take an"
      " instruction-tuned checkpoint or set config.model.tokenizer."
    )
  specials = _special_texts(tokenizer)
  salt = _unused_salt(example, system)
  # Row text goes through the chat template with marks in place of special
  # tokens; the marks are resolved after it.
  example, system = _with_marks((example, system), specials, salt)
  messages, tools, thoughts = templates.conversation(
    example,
    template=template,
    thinking=thinking,
    system=system,
    think_mark=f"[#{salt}#think",
    wrap_tools=wrap_tools,
  )
  try:
    text = cast(
      str,
      tokenizer.apply_chat_template(
        messages,
        tools=cast(Any, tools or None),
        tokenize=False,
        add_generation_prompt=True,
        date_string=_DATE,
      ),
    )
  except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
    raise templates.RowError(
      f"the chat template refuses it: {error}"
    ) from error
  for mark, thought in thoughts.items():
    text = text.replace(mark, thought)
  parts = re.split(rf"\[#{salt}#(\d+)\]", text)
  pieces = [
    (position % 2 == 1, specials[int(part)] if position % 2 else part)
    for position, part in enumerate(parts)
  ]
  return [(is_literal, piece) for is_literal, piece in pieces if piece]


def _special_texts(
  tokenizer: transformers.PreTrainedTokenizerBase,
) -> list[str]:
  """Texts of all special tokens, longest first."""
  texts = {
    token.content
    for token in tokenizer.added_tokens_decoder.values()
    if token.special
  }
  texts.update(tokenizer.all_special_tokens)
  return sorted(texts - {""}, key=lambda text: (-len(text), text))


def _unused_salt(example: types.Example, system: str) -> int:
  """The smallest number whose marks occur nowhere in the row."""
  text, salt = repr((example, system)), 0
  while f"[#{salt}#" in text:
    salt += 1
  return salt


def _with_marks(value: Any, specials: Sequence[str], salt: int) -> Any:
  """Copies a record with the text of special tokens turned into marks."""
  if not specials:
    return value
  position = {text: i for i, text in enumerate(specials)}
  pattern = re.compile("|".join(re.escape(text) for text in specials))

  def mark(item: Any) -> Any:
    if isinstance(item, str):
      return pattern.sub(lambda m: f"[#{salt}#{position[m[0]]}]", item)
    if isinstance(item, Mapping):
      return {mark(key): mark(entry) for key, entry in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
      return type(item)(*(mark(entry) for entry in item))
    if isinstance(item, (list, tuple)):
      return type(item)(mark(entry) for entry in item)
    return item

  return mark(value)
