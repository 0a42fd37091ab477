"""docs/configuration.md says what configs/common.py says, of every field."""

import importlib.util
import re

import ml_collections
import pytest

from configs import common
from toolrl_jax import configuration

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def maker(root_dir):
  path = root_dir / "docs" / "make_configuration.py"
  spec = importlib.util.spec_from_file_location("make_configuration", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _names(config, prefix=""):
  for key, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      yield from _names(value, f"{prefix}{key}.")
    else:
      yield f"{prefix}{key}"


_SOURCE = '''
def get_config():
  """Returns it."""
  config = ml_collections.ConfigDict()
  # Seed of
  # the order.
  config.seed = 0

  # ----- data: rows -----
  config.data = rows = ml_collections.ConfigDict()
  # "a" | "b" (as <x>).
  rows.form = "a"
  # Lengths. Empty: none.
  rows.lengths = ()
  return config.lock()
'''


def test_read_takes_section_default_type_and_the_comment_above(maker):
  assert maker.read(_SOURCE) == [
    ("run", [("seed", "0", "int", "Seed of the order.")]),
    (
      "data: rows",
      [
        ("data.form", "a", "str", '"a" | "b" (as <x>).'),
        ("data.lengths", "()", "tuple", "Lengths. Empty: none."),
      ],
    ),
  ]


def test_page_escapes_what_a_table_would_take_for_its_own(maker):
  page = maker.page(maker.read(_SOURCE), {"seed": (0, None)})
  assert "| `seed` | `0` | int, at least 0 | Seed of the order. |" in page
  assert '| `data.form` | `a` | str | "a" \\| "b" (as &lt;x>). |' in page
  assert "| `data.lengths` | empty | tuple | Lengths. Empty: none. |" in page
  assert "* [run](#run)\n* [data: rows](#data-rows)\n" in page


def test_read_refuses_a_field_without_a_comment_of_its_own(maker):
  source = _SOURCE.replace("  # Lengths. Empty: none.\n", "")
  with pytest.raises(ValueError, match="data.lengths has none; say"):
    maker.read(source)


def test_the_reference_is_current(maker):
  made = maker.page(maker.read(maker.SOURCE.read_text()), configuration.BOUNDS)
  assert maker.PAGE.read_text() == made, (
    "run: uv run python docs/make_configuration.py"
  )


def test_the_reference_holds_every_field_once_with_its_default(maker):
  page = maker.PAGE.read_text()
  config = common.get_config()
  shown = re.findall(r"^\| `([\w.]+)` \| (\S.*?) \|", page, flags=re.M)
  # A locked configuration gives its fields in the order of the alphabet.
  assert sorted(name for name, _ in shown) == sorted(_names(config))
  for name, default in shown:
    section, _, field = name.rpartition(".")
    value = (config[section] if section else config)[field]
    text = value if isinstance(value, str) else repr(value)
    assert default == ("empty" if text in ("", "()") else f"`{text}`"), name


def test_a_table_row_has_four_cells(maker):
  rows = [x for x in maker.PAGE.read_text().splitlines() if x.startswith("| `")]
  assert len(rows) > 100
  for row in rows:
    assert len(re.findall(r"(?<!\\)\|", row)) == 5, row
