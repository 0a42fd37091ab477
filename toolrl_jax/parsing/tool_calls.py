"""Text to tool calls and back: completions, gold texts, renderings.

A parser here reads whatever a model wrote and always answers with a
ParsedCompletion; text that cannot be read is a status, not an exception. The
three layouts ("styles") of calls in text:

* "toolrl": `<think>`, then one `<tool_call>` block with one JSON object a line
  (keys `name`, `parameters`) and / or `<response>`. Only the first block
  counts, also when its tag stands in the thinking, and one bad line spoils the
  whole block, as in the authors' code of arXiv:2504.13958.
* "native": Qwen's chat template; one JSON object (keys `name`, `arguments`) a
  `<tool_call>` block, any number of blocks, text outside them is the answer,
  an optional `<think>` part first, in which tags mean nothing.
* "n1": one `<tool_call>` block, the last, with a JSON list of such objects, as
  in the authors' code of Tool-N1.

This module does not know what is right: scoring compares its records.
"""

import json
from collections.abc import Sequence
from typing import Literal

from toolrl_jax import types
from toolrl_jax.parsing import call_objects

Style = Literal["toolrl", "native", "n1"]

_KEYS = {"toolrl": "parameters", "native": "arguments", "n1": "arguments"}
_THINK = ("<think>", "</think>")
_CALL = ("<tool_call>", "</tool_call>")
_RESPONSE = ("<response>", "</response>")
# Stands where a gold has no thinking of its own; never scored.
_THINK_CALL = "The request needs a tool, so I call it now."
_THINK_ANSWER = "No tool is needed here, so I answer directly."


def parse_completion(
  text: str, *, style: Style = "toolrl"
) -> types.ParsedCompletion:
  """Reads one completion; never raises, whatever the text.

  Args:
    text: The completion without the model's special tokens; white space around
      it is ignored.
    style: Layout the model was asked for.

  Returns:
    The calls, the answer, the status and the format flags.
  """
  text = text.strip()
  if style == "toolrl":
    block, response = _read_toolrl(text), _between(text, _RESPONSE)
    one, two = (_toolrl_kinds(text, (1,)), _toolrl_kinds(text, (1, 2)))
  else:
    body, num_newlines = _split_thinking(text)
    blocks, response, is_closed = _split_blocks(body)
    block = _read_blocks(blocks, is_closed, style)
    kind = _native_kind(blocks, response, is_closed)
    one = kind if num_newlines in (None, 1) else frozenset()
    two = kind if num_newlines in (None, 1, 2) else frozenset()
  return types.ParsedCompletion(
    status=block.status,
    calls=block.calls,
    call_shapes=block.shapes,
    response=response,
    num_think_words=_num_think_words(text),
    has_think=_THINK[0] in text and _THINK[1] in text,
    formats_one=one,
    formats_one_or_two=two,
  )


def parse_gold(text: str) -> types.Gold:
  """Reads a gold text in the ToolRL layout.

  Everything up to the first closing think tag is cut away, so tags that the
  thinking mentions do no harm.

  Args:
    text: Gold text: thinking, then a call block and / or an answer.

  Returns:
    The gold calls and answer.

  Raises:
    ValueError: The text has none of the tags, or its block cannot be read.
  """
  head, found, rest = text.partition(_THINK[1])
  rest = (rest if found else head).strip()
  call_text, response_text = _split_gold(rest)
  calls: tuple[types.ToolCall, ...] = ()
  if any(tag in call_text for tag in _CALL):
    block = _read_toolrl(call_text)
    if block.status != types.ParseStatus.OK:
      raise ValueError(
        "gold calls must be one JSON object a line with name and parameters, "
        f"got {block.status.name} in {_excerpt(rest)}; repair or drop the row."
      )
    for call in block.calls:
      _check_comparable(call)
    calls = block.calls
  response = _between(response_text, _RESPONSE)
  if response is None and any(tag in response_text for tag in _RESPONSE):
    raise ValueError(
      "a gold answer must stand between <response> and </response>, got "
      f"{_excerpt(rest)}; repair or drop the row."
    )
  if not calls and response is None and not found:
    raise ValueError(
      "a gold text must hold <think>, <tool_call> or <response> parts, got "
      f"{_excerpt(text)}; repair or drop the row."
    )
  return types.Gold(calls=calls, response=response)


def _split_gold(text: str) -> tuple[str, str]:
  """Splits a gold into its call part and its answer part.

  Whichever comes first ends at its closing tag: each may quote the other's.
  """
  for (open_tag, close_tag), is_call in ((_CALL, True), (_RESPONSE, False)):
    if text.startswith(open_tag) and close_tag in text:
      end = text.index(close_tag) + len(close_tag)
      first, second = text[:end], text[end:]
      return (first, second) if is_call else (second, first)
  return text, text


def render_gold(
  gold: types.Gold, *, style: Style = "toolrl", think: str | None = None
) -> str:
  """Writes the completion that a gold stands for.

  Args:
    gold: Calls and answer.
    style: Layout to write.
    think: Text of the thinking; None takes a placeholder sentence. The empty
      string leaves the thinking out, except in the ToolRL layout, whose format
      needs its tags.

  Returns:
    A completion that scores full marks against `gold`.
  """
  if think is None:
    think = _THINK_CALL if gold.calls else _THINK_ANSWER
  parts = []
  if think or style == "toolrl":
    parts.append(f"<think> {think} </think>")
  lines = [_render_call(call, _KEYS[style]) for call in gold.calls]
  if style == "toolrl":
    if lines:
      parts.append("\n".join([_CALL[0], *lines, _CALL[1]]))
    if gold.response is not None:
      parts.append(f"<response> {gold.response} </response>")
    return "\n".join(parts)
  if gold.response is not None and gold.response.strip():
    parts.append(gold.response.strip())
  if style == "n1":
    parts.append(f"{_CALL[0]}[{', '.join(lines)}]{_CALL[1]}")
  else:
    parts += [f"{_CALL[0]}\n{line}\n{_CALL[1]}" for line in lines]
  return "\n".join(parts)


def _render_call(call: types.ToolCall, key: str) -> str:
  """Writes one call as one line of JSON that no reader can mistake."""
  fields = {"name": call.name, key: dict(call.arguments)}
  line = json.dumps(fields, ensure_ascii=False)
  if not is_utf8(line):
    line = json.dumps(fields)
  # A closing tag inside a string would end the block early.
  for tag in (*_CALL, *_THINK, *_RESPONSE):
    line = line.replace(tag, "\\u003c" + tag[1:])
  return line


def is_utf8(text: str) -> bool:
  """Whether the text can be written to a file: no lone surrogates."""
  try:
    text.encode("utf-8")
  except UnicodeEncodeError:
    return False
  return True


def _check_comparable(call: types.ToolCall) -> None:
  """Refuses gold that no completion could ever equal."""
  values = list(call.arguments.values())
  while values:
    value = values.pop()
    if isinstance(value, float) and value != value:
      raise ValueError(
        f"a gold argument must not be NaN, which equals nothing, got one in "
        f"the call of {call.name!r}; repair or drop the row."
      )
    values += call_objects.children(value)


def _excerpt(text: str) -> str:
  """Shortens a text for one line of an error message."""
  return repr(text if len(text) <= 80 else text[:77] + "...")


# ----- the ToolRL layout -----


def _read_toolrl(text: str) -> call_objects.ReadCalls:
  """Reads the first block: one JSON object a line, all or nothing."""
  start, end = text.find(_CALL[0]), text.find(_CALL[1])
  if start < 0 and end < 0:
    return call_objects.ReadCalls(types.ParseStatus.NO_CALL)
  content = _between(text, _CALL)
  if content is None:
    return call_objects.ReadCalls(types.ParseStatus.UNCLOSED)
  return call_objects.read_calls(
    [call_objects.load(line) for line in content.split("\n")], _KEYS["toolrl"]
  )


def _toolrl_kinds(
  text: str, num_newlines: Sequence[int]
) -> frozenset[types.GoldKind]:
  """Finds the kinds of gold whose format the text has.

  As in the authors' code, the number of think tags and the content of the
  parts are not looked at, and a tag pair that the kind needs must be the only
  one of its name in the whole text.
  """
  has_one_call = all(text.count(tag) == 1 for tag in _CALL)
  has_one_response = all(text.count(tag) == 1 for tag in _RESPONSE)
  kinds: set[types.GoldKind] = set()
  if _is_made_of(text, _THINK):
    kinds.add("none")
  for n in num_newlines:
    gap = "</think>" + "\n" * n
    call_tail = gap + "<tool_call>\n"
    if has_one_response and _is_made_of(
      text, ("<think>", gap + "<response>", "</response>")
    ):
      kinds.add("response")
    if has_one_call and _is_made_of(
      text, ("<think>", call_tail, "\n</tool_call>")
    ):
      kinds.add("calls")
    middle = "\n</tool_call>\n<response>"
    if (
      has_one_call
      and has_one_response
      and _is_made_of(text, ("<think>", call_tail, middle, "</response>"))
    ):
      kinds.add("both")
  return frozenset(kinds)


def _is_made_of(text: str, parts: Sequence[str]) -> bool:
  """Tells whether the text is the parts in order with anything between them.

  The same as matching `^part.*?part ... part$`, in linear time: model text may
  repeat a tag a thousand times, which makes a regular expression quadratic.
  """
  if not text.startswith(parts[0]):
    return False
  position = len(parts[0])
  for part in parts[1:-1]:
    found = text.find(part, position)
    if found < 0:
      return False
    position = found + len(part)
  return text.endswith(parts[-1]) and len(text) - len(parts[-1]) >= position


# ----- the native layout and Tool-N1's -----


def _split_thinking(text: str) -> tuple[str, int | None]:
  """Cuts a leading think part off.

  Returns:
    What follows it, and the newlines between; None where there is nothing to
    count: no think part, or nothing behind it. A think part that never ends
    leaves nothing and counts 0 newlines.
  """
  if not text.startswith(_THINK[0]):
    return text, None
  end = text.find(_THINK[1])
  if end < 0:
    return "", 0
  rest = text[end + len(_THINK[1]) :]
  body = rest.lstrip("\n")
  return body, (len(rest) - len(body) if body else None)


def _split_blocks(text: str) -> tuple[list[str], str | None, bool]:
  """Splits a text into call blocks and the answer around them.

  Returns:
    Contents of the blocks, the answer (None if blank), and whether every tag
    has its partner.
  """
  blocks, outside, position = [], [], 0
  is_closed = True
  while (start := text.find(_CALL[0], position)) >= 0:
    outside.append(text[position:start])
    start += len(_CALL[0])
    end = text.find(_CALL[1], start)
    if end < 0:
      is_closed, position = False, len(text)
      break
    blocks.append(text[start:end])
    position = end + len(_CALL[1])
  outside.append(text[position:])
  answer = "".join(outside).strip()
  is_closed = is_closed and _CALL[1] not in answer
  return blocks, answer or None, is_closed


def _read_blocks(
  blocks: Sequence[str], is_closed: bool, style: Style
) -> call_objects.ReadCalls:
  """Reads the contents of all call blocks, or of the last for "n1"."""
  if style == "n1" and blocks:
    loaded = call_objects.load(blocks[-1].strip())
    if isinstance(loaded, str):
      loaded = call_objects.load(loaded.strip())
    items = loaded if isinstance(loaded, list) else [loaded]
    return call_objects.read_calls(items, _KEYS[style])
  if not is_closed:
    return call_objects.ReadCalls(types.ParseStatus.UNCLOSED)
  if not blocks:
    return call_objects.ReadCalls(types.ParseStatus.NO_CALL)
  return call_objects.read_calls(
    [call_objects.load(block.strip()) for block in blocks], _KEYS[style]
  )


def _native_kind(
  blocks: Sequence[str], response: str | None, is_closed: bool
) -> frozenset[types.GoldKind]:
  """Finds the one kind of gold whose format the text has, if any."""
  if not is_closed:
    return frozenset()
  if blocks:
    return frozenset({"calls" if response is None else "both"})
  return frozenset({"none" if response is None else "response"})


# ----- tags -----


def _between(text: str, tags: tuple[str, str]) -> str | None:
  """Takes the stripped text of the first pair of tags, or None."""
  start = text.find(tags[0])
  if start < 0:
    return None
  start += len(tags[0])
  end = text.find(tags[1], start)
  return None if end < 0 else text[start:end].strip()


def _num_think_words(text: str) -> int:
  """Counts words from the last opening think tag to the next closing one."""
  start = text.rfind(_THINK[0])
  end = text.find(_THINK[1], start)
  if start < 0 or end < 0:
    return 0
  return len(text[start + len(_THINK[0]) : end].split())
