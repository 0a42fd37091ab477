"""The ToolRL layout: a dialogue and its tools as one system and one user text.

Both directions, between the messages and tools of `types.Example` and the two
texts that ToolRL (arXiv:2504.13958) trains on. The system text lists the tools
under a heading; the user text holds the whole dialogue as blocks `<user>`,
`<think>`, `<tool_call>`, `<response>` and `<obs>`. This module knows neither
files nor tokens.

The wording of the system text is ours. Rows that came in this layout keep
their own bytes (`Example.verbatim`) and never pass through `system_text`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl_jax.parsing import tool_calls

DIALOGUE_HEADING = "**Dialogue Records History**"
TOOLS_HEADING = "**Available Tools**"
STEPS_HEADING = "**Steps for Each Turn**"

_ROLE = (
  "You help a user over several turns: call tools where they are needed and"
  " answer in words where they are not."
)
_RULES = """\
**Steps for Each Turn**
1. **Think:** Go over the dialogue and work out what is wanted now.
2. **Choose:** If a tool is needed, pick it and fill in its parameters.
3. **Answer:** If no tool is needed, or its outcome is known, reply to the user.

**Output Format**
```plaintext
<think> What you consider first </think>
<tool_call>
{"name": "one tool", "parameters": {"a parameter": "its value"}}
{"name": "another tool", "parameters": {}}
</tool_call>
<response> What you say to the user </response>
```

**Important Notes**
1. Begin with `<think>`, then give `<tool_call>`, `<response>` or both.
2. Inside `<tool_call>` each line is one JSON object with "name" and \
"parameters"; a tool without parameters takes `{}`.
3. The user message holds the dialogue so far; `<obs>` is what a tool returned.
"""

_TAGS = "user|think|tool_call|response|obs"
# A block ends at a closing tag that another block or the end follows, so text
# that merely mentions a tag does not cut it.
_BLOCK = re.compile(
  rf"\s*<({_TAGS})>(.*?)</\1>(?=\s*(?:<(?:{_TAGS})>|\Z))", re.DOTALL
)
_ENTRY = re.compile(r"^(\d+)\. Name: ", re.MULTILINE)


def flat_parameters(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Turns a JSON schema of parameters into ToolRL's flat map.

  ToolRL knows no list of required parameters; a parameter outside `required`
  says so in its type, as the data do ("int, optional").

  Args:
    schema: JSON schema of an object; without `properties` there are none.

  Returns:
    Parameter name to `description`, `type`, `default` and what else it has.
  """
  required = schema.get("required")
  flat = {}
  for name, document in schema.get("properties", {}).items():
    entry = {"description": "", "type": "", "default": ""} | dict(document)
    is_optional = required is not None and name not in required
    if is_optional and isinstance(entry["type"], str):
      entry["type"] += ", optional"
    flat[name] = entry
  return flat


def system_text(
  tools: Sequence[Mapping[str, Any]], *, role: str = "", extra: str = ""
) -> str:
  """Renders the system text of the layout in our own wording.

  Args:
    tools: Tool documents: `name`, `description`, `parameters` (JSON schema).
    role: First lines; empty takes ours.
    extra: Text after everything else; empty is none.

  Returns:
    The system text.
  """
  lines = [role or _ROLE, "", TOOLS_HEADING, "These tools can be called:"]
  for number, tool in enumerate(tools, start=1):
    parameters = flat_parameters(tool["parameters"])
    lines.append(f"{number}. Name: {tool['name']}")
    lines.append(f"Description: {tool['description']}")
    lines.append(f"Parameters: {json.dumps(parameters, ensure_ascii=False)}")
  if not tools:
    lines.append("(no tools)")
  text = "\n".join(lines) + "\n\n" + _RULES
  return text + "\n" + extra if extra else text


def dialogue_text(
  messages: Sequence[Mapping[str, Any]], *, is_think_shown: bool = True
) -> str:
  """Renders a dialogue as the one user text of the layout.

  Args:
    messages: History in order; system messages are left out.
    is_think_shown: Whether assistant turns show their recorded thinking.

  Returns:
    The user text, from the heading to the last block.
  """
  text, previous = DIALOGUE_HEADING + "\n", None
  observations: list[Mapping[str, Any]] = []
  for message in messages:
    role = message["role"]
    if previous == "tool" and role != "tool":
      text += _observation_block(observations)
      observations = []
    if role == "tool":
      if previous == "assistant":
        # An observation follows its calls directly.
        text = text.removesuffix("\n")
      observations.append(message)
    elif role == "user":
      text += f"<user> {message['content']} </user>\n\n"
    elif role == "assistant":
      text += _assistant_block(message, is_think_shown) + "\n\n"
    previous = role
  if observations:
    text += _observation_block(observations)
  return text.removesuffix("\n\n")


def _assistant_block(message: Mapping[str, Any], is_think_shown: bool) -> str:
  lines = []
  if is_think_shown and message.get("think"):
    lines.append(f"<think> {message['think']} </think>")
  if message.get("calls"):
    lines.append("<tool_call>")
    for call in message["calls"]:
      document = {"name": call.name, "parameters": dict(call.arguments)}
      lines.append(json.dumps(document, ensure_ascii=False))
    lines.append("</tool_call>")
  if message["content"]:
    lines.append(f"<response> {message['content']} </response>")
  return "\n".join(lines)


def _observation_block(messages: Sequence[Mapping[str, Any]]) -> str:
  if any("name" not in message for message in messages):
    text = "\n".join(message["content"] for message in messages)
  else:
    entries = [
      {"name": message["name"], "results": _embedded(message["content"])}
      for message in messages
    ]
    text = json.dumps(entries, ensure_ascii=False)
  return f"<obs> {text} </obs>\n\n"


def _embedded(content: str) -> Any:
  """Gives objects and lists as JSON values, everything else as its text."""
  if content[:1] not in ("{", "["):
    return content
  try:
    return json.loads(content)
  except (ValueError, RecursionError):
    return content


def parse_tools(text: str) -> tuple[str, tuple[dict[str, Any], ...]]:
  """Reads role line and tool documents from a system text of the layout.

  Types in the data are free text ("str, optional"); they are kept as they are.

  Args:
    text: System text with the two headings around the list.

  Returns:
    The text before the list, and the tools with `parameters` as JSON schema.

  Raises:
    ValueError: The list or one of its entries is not in the layout.
  """
  role, heading, rest = text.partition(TOOLS_HEADING)
  listing, end_heading, _ = rest.partition(STEPS_HEADING)
  if not heading or not end_heading:
    raise ValueError(f"the system text needs {TOOLS_HEADING!r} with a list.")
  starts: list[re.Match[str]] = []
  for entry in _ENTRY.finditer(listing):
    # A numbered line inside a description does not continue the count, or
    # comes before the parameters of its entry.
    is_next = int(entry[1]) == len(starts) + 1
    opened = listing[starts[-1].end() : entry.start()] if starts else ""
    if is_next and (not starts or "\nParameters: " in opened):
      starts.append(entry)
  ends = [entry.start() for entry in starts[1:]] + [len(listing)]
  tools = [
    _parse_entry(listing[entry.end() : end])
    for entry, end in zip(starts, ends, strict=True)
  ]
  return role.strip(), tuple(tools)


def _parse_entry(text: str) -> dict[str, Any]:
  name, name_end, rest = text.partition("\nDescription: ")
  description, parameters_start, document = rest.rpartition("\nParameters: ")
  if not name_end or not parameters_start:
    raise ValueError(f"tool entry {name[:40]!r} lacks a field of the layout.")
  try:
    properties = json.loads(document)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"parameters of tool {name!r} are not JSON.") from error
  if not isinstance(properties, dict):
    raise ValueError(f"parameters of tool {name!r} are not a JSON object.")
  schema = {"type": "object", "properties": properties}
  return {"name": name, "description": description, "parameters": schema}


def parse_dialogue(text: str) -> tuple[dict[str, Any], ...]:
  """Reads the messages from a user text of the layout.

  Args:
    text: User text that starts with the dialogue heading.

  Returns:
    Messages of roles user, assistant and tool, in order.

  Raises:
    ValueError: The text is not a sequence of the layout's blocks.
  """
  heading, _, body = text.partition("\n")
  if heading.strip() != DIALOGUE_HEADING:
    raise ValueError(f"the user text must start with {DIALOGUE_HEADING!r}.")
  messages: list[dict[str, Any]] = []
  position = 0
  body = body.rstrip()
  while position < len(body):
    block = _BLOCK.match(body, position)
    if block is None:
      where = body[position : position + 30]
      raise ValueError(f"no block of the layout starts at {where!r}.")
    _append_block(messages, block[1], block[2])
    position = block.end()
  if not any(message["role"] == "user" for message in messages):
    raise ValueError("the dialogue has no <user> block.")
  if messages[-1]["role"] == "assistant":
    raise ValueError("the dialogue must end with a <user> or <obs> block.")
  return tuple(messages)


def _append_block(messages: list[dict[str, Any]], tag: str, body: str) -> None:
  content = body.removeprefix(" ").removesuffix(" ")
  if tag == "user":
    messages.append({"role": "user", "content": content})
  elif tag == "obs":
    messages.extend(_parse_observation(content))
  else:
    # A think block opens a turn; calls and response join the open one.
    is_open = bool(messages) and messages[-1]["role"] == "assistant"
    if tag == "think" or not is_open:
      messages.append({"role": "assistant", "content": ""})
    if tag == "think":
      messages[-1]["think"] = content
    elif tag == "response":
      messages[-1]["content"] = content
    else:
      gold = tool_calls.parse_gold(f"<tool_call>{body}</tool_call>")
      messages[-1]["calls"] = gold.calls


def _parse_observation(text: str) -> list[dict[str, Any]]:
  try:
    entries = json.loads(text)
  except (ValueError, RecursionError):
    entries = None
  is_listed = isinstance(entries, list) and all(
    isinstance(entry, dict) and set(entry) == {"name", "results"}
    for entry in entries
  )
  if not is_listed:
    return [{"role": "tool", "content": text}]
  return [
    {
      "role": "tool",
      "name": str(entry["name"]),
      "content": entry["results"]
      if isinstance(entry["results"], str)
      else json.dumps(entry["results"], ensure_ascii=False),
    }
    for entry in entries
  ]


def parse_rows(
  system: str, user: str
) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
  """Reads messages and tools from the two texts of a ToolRL row.

  Args:
    system: System text of the row.
    user: User text of the row.

  Returns:
    Messages (the role line is the system message) and tool documents.

  Raises:
    ValueError: Either text is not in the layout.
  """
  role, tools = parse_tools(system)
  messages = parse_dialogue(user)
  if role:
    messages = ({"role": "system", "content": role}, *messages)
  return messages, tools


def has_think(messages: Sequence[Mapping[str, Any]]) -> bool:
  """Says whether any turn of a history has recorded thinking.

  Args:
    messages: History in order.

  Returns:
    True when an assistant turn holds `think`.
  """
  return any(message.get("think") for message in messages)
