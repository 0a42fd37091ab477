"""Text of unknown origin to text that a page can show.

Characters that steer instead of showing (controls, lone surrogates, marks that
turn the direction of reading) become visible escapes. HTML is not its concern.
"""

import unicodedata

_NEWLINES = ("\n", "\t")
# Change the order in which other characters are shown.
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
                  "\u2066\u2067\u2068\u2069")  # fmt: skip


def text(raw: str) -> str:
  """Returns a text in which every character shows as itself.

  Args:
    raw: Any text.

  Returns:
    The same with escapes as in "\\\\x00" and "\\\\ud800"; line feeds and tabs
    stay. It can be encoded as UTF-8.
  """
  if raw.isascii() and raw.isprintable():
    return raw
  return "".join(one if _is_shown(one) else _escape(one) for one in raw)


def _is_shown(one: str) -> bool:
  if one in _NEWLINES:
    return True
  return one not in _BIDI and unicodedata.category(one) not in ("Cc", "Cs")


def _escape(one: str) -> str:
  return f"\\x{ord(one):02x}" if ord(one) < 0x100 else f"\\u{ord(one):04x}"


def cut(raw: str, *, most: int) -> str:
  """Returns a text of bounded length that says how much it leaves out.

  Args:
    raw: Any text.
    most: Most characters of it that are kept, at least 1.

  Returns:
    The printable text.

  Raises:
    ValueError: If `most` is below 1.
  """
  if most < 1:
    raise ValueError(f"most must be at least 1, got {most}; leave it out.")
  if len(raw) <= most:
    return text(raw)
  return f"{text(raw[:most])} … ({len(raw) - most:,} more characters)"
