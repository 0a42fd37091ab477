"""Makes configuration.md from the comments of configs/common.py.

    uv run python docs/make_configuration.py

From the source of `get_config` to one table a section: field, default, type
with its range, and the comment that stands above the field. It does not know
what a field does; a field without a comment of its own is an error.
"""

import ast
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from toolrl_jax import configuration

_ROOT = pathlib.Path(__file__).parent.parent
SOURCE = _ROOT / "configs" / "common.py"
PAGE = _ROOT / "docs" / "configuration.md"

_BANNER = re.compile(r"# -+ (?P<title>.+?) -+")
_RUN = "run"

_HEAD = """\
# Every field of a run

Made from the comments of `configs/common.py` by
`uv run python docs/make_configuration.py`; change a comment there, not here.

A recipe in `configs/` states only what differs from these defaults, and the
command line changes both:

    uv run toolrl-train --config=configs/tiny.py --workdir=/tmp/tiny \\
      --config.rollout.group_size=4 --config.data.prompt_buckets="(128, 160)"

A text is written as it is, a list in quotes and brackets, a flag as `True` or
`False`. An unknown field or a value out of its range is one line before any
work starts. `WORKDIR/config.json` holds what a run was started with.
"""


class Field(NamedTuple):
  """One field.

  Attributes:
    name: As after `--config.`, for example "rollout.slots".
    default: Its value, as it is written on the command line.
    kind: Name of the value's type.
    meaning: The comment above it, as one line.
  """

  name: str
  default: str
  kind: str
  meaning: str


class Section(NamedTuple):
  """The fields below one banner.

  Attributes:
    title: The banner's text.
    fields: In the order of the source.
  """

  title: str
  fields: list[Field]


def read(source: str) -> list[Section]:
  """Reads the sections of a configuration.

  Args:
    source: Python text with a function `get_config` that assigns literals.

  Returns:
    Sections in the order of the source; fields of no section come first,
    under the title "run".

  Raises:
    ValueError: A field has no comment right above it.
  """
  lines = source.splitlines()
  sections = [Section(_RUN, [])]
  # What a variable stands for: "model" for `config.model = model = ...`.
  names = {"config": ""}
  for statement in _get_config(source).body:
    for line in range(statement.lineno - 1, 0, -1):
      banner = _BANNER.fullmatch(lines[line - 1].strip())
      if banner:
        sections.append(Section(banner["title"], []))
      if banner or lines[line - 1].strip():
        break
    if not isinstance(statement, ast.Assign):
      continue
    field, *variables = statement.targets
    if not isinstance(field, ast.Attribute):
      continue
    if variables:
      names[ast.unparse(variables[0])] = f"{field.attr}."
      continue
    name = f"{names[ast.unparse(field.value)]}{field.attr}"
    value = ast.literal_eval(statement.value)
    meaning = _comment_above(lines, statement.lineno)
    if not meaning:
      raise ValueError(
        f"every field needs a comment right above it, {name} has none; say "
        "there what it does, with unit and special values."
      )
    default = value if isinstance(value, str) else ast.unparse(statement.value)
    sections[-1].fields.append(
      Field(name, default, type(value).__name__, meaning)
    )
  return sections


def _get_config(source: str) -> ast.FunctionDef:
  for node in ast.parse(source).body:
    if isinstance(node, ast.FunctionDef) and node.name == "get_config":
      return node
  raise ValueError("the source must have a function get_config, it has none.")


def _comment_above(lines: Sequence[str], number: int) -> str:
  """Joins the comment lines that end right above a line counted from 1."""
  first = number - 1
  while lines[first - 1].strip().startswith("#"):
    first -= 1
  above = [line.strip().removeprefix("#") for line in lines[first : number - 1]]
  return " ".join(" ".join(above).split())


def page(
  sections: Sequence[Section],
  bounds: Mapping[str, tuple[float, float | None]],
) -> str:
  """Writes the reference.

  Args:
    sections: From `read`.
    bounds: Least and largest value of a numeric field, by its name.

  Returns:
    Markdown.
  """
  titles = [f"* [{s.title}](#{_anchor(s.title)})" for s in sections]
  parts = [_HEAD, "\n".join([*titles, ""])]
  for section in sections:
    rows = [
      f"| `{field.name}` | {_code(field.default)} | {_type(field, bounds)} | "
      f"{_text(field.meaning)} |"
      for field in section.fields
    ]
    head = "| field | default | type | meaning |\n| --- | --- | --- | --- |"
    parts.append("\n".join([f"## {section.title}\n", head, *rows, ""]))
  return "\n".join(parts)


def _anchor(title: str) -> str:
  """Returns the anchor that a Markdown viewer gives a heading."""
  return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _type(
  field: Field, bounds: Mapping[str, tuple[float, float | None]]
) -> str:
  if field.name not in bounds:
    return field.kind
  least, most = bounds[field.name]
  if most is None:
    return f"{field.kind}, at least {least}"
  return f"{field.kind} in [{least}, {most}]"


def _code(text: str) -> str:
  return "empty" if text in ("", "()") else f"`{text}`"


def _text(comment: str) -> str:
  """Escapes what a table or a viewer would take for its own."""
  return comment.replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")


def main() -> None:
  """Writes the page."""
  text = page(read(SOURCE.read_text()), configuration.BOUNDS)
  PAGE.write_text(text)


if __name__ == "__main__":
  main()
