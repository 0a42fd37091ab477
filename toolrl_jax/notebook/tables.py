"""Records to tables that a notebook shows.

Text is shown as it is, with line breaks, and escaped: model text never becomes
part of the page. Knows nothing of what the columns mean.
"""

import html
from collections.abc import Sequence
from typing import NamedTuple

from toolrl_jax.reporting import printable

Cell = str | bool | int | float | None

_STYLE = (
  "text-align:left;vertical-align:top;padding:4px 10px;"
  "border-bottom:1px solid rgba(128,128,128,.35);"
)
_TEXT_STYLE = "white-space:pre-wrap;overflow-wrap:anywhere;min-width:"
# Of the column of a short and of a long text; the table scrolls where the
# screen is narrow.
_WIDTHS = ("5em", "14em")
_LONG_TEXT = 40
_SHORT_STYLE = "white-space:nowrap"
# A completion that never ends would make the notebook too large to open.
_MOST_CHARACTERS = 20_000
_COLORS = {True: "#1a7f37", False: "#b3261e"}


class Table(NamedTuple):
  """A table; a notebook shows it where it is the last line of a cell.

  Attributes:
    header: Names of the columns.
    rows: A cell a column: text, a number, or yes and no; None is empty.
    caption: A sentence above.
  """

  header: tuple[str, ...]
  rows: tuple[tuple[Cell, ...], ...]
  caption: str = ""

  def __repr__(self) -> str:
    lines = [self.caption] if self.caption else []
    lines += [" | ".join(self.header)]
    lines += [" | ".join(map(_text, row)) for row in self.rows]
    return "\n".join(lines)

  def _repr_html_(self) -> str:
    head = "".join(
      f'<th style="{_STYLE}{_SHORT_STYLE}">{html.escape(name)}</th>'
      for name in self.header
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
    return (
      '<div style="overflow-x:auto"><table style="border-collapse:collapse">'
      f'<caption style="text-align:left;padding:4px 10px">'
      f"{html.escape(self.caption)}</caption>"
      f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def table(
  header: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = ""
) -> Table:
  """Returns a table.

  Args:
    header: Names of the columns.
    rows: As many cells a row.
    caption: A sentence above.

  Raises:
    ValueError: A row has another number of cells.
  """
  for row in rows:
    if len(row) != len(header):
      raise ValueError(
        f"a row must have {len(header)} cells, got {len(row)}; fill it up."
      )
  return Table(tuple(header), tuple(tuple(row) for row in rows), caption)


def _cell(value: Cell) -> str:
  text = html.escape(_text(value))
  style = _SHORT_STYLE
  if isinstance(value, str):
    style = _TEXT_STYLE + _WIDTHS[len(value) > _LONG_TEXT]
  if isinstance(value, bool):
    style += f";color:{_COLORS[value]}"
  return f'<td style="{_STYLE}{style}">{text}</td>'


def _text(value: Cell) -> str:
  if value is None:
    return ""
  if isinstance(value, bool):
    return "yes" if value else "no"
  if isinstance(value, str):
    return printable.cut(value, most=_MOST_CHARACTERS)
  # 0 is added so that -0.0 is no other number.
  return f"{round(value, 3) + 0:g}" if isinstance(value, float) else str(value)
