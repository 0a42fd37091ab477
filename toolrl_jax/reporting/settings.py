"""Configurations side by side: fields of runs beside recipe and defaults.

From config.json and recipe files to rows of a table. The recipe of a run is the
one that it names, looked for among this checkout's only, since recipes are
Python and are run; or the one that differs in the fewest fields, and then said
so. It does not judge values.
"""

import contextlib
import json
import pathlib
import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from toolrl_jax.reporting import runs

Fields = Mapping[str, Any]

# Where a checkout has its recipes.
RECIPES = pathlib.Path(__file__).resolve().parents[2] / "configs"
_DEFAULTS = "common.py"


class _Absent:
  """Stands where a configuration has no such field."""

  def __repr__(self) -> str:
    return "–"


ABSENT = _Absent()


class Recipe(NamedTuple):
  """A recipe file.

  Attributes:
    name: Its path, as a reader knows it.
    fields: "section.field" to value.
    is_guessed: Whether it is only the nearest one.
  """

  name: str
  fields: Fields
  is_guessed: bool = False


class Row(NamedTuple):
  """A field in all configurations; ABSENT where one does not have it.

  Attributes:
    name: "section.field".
    default: Value in configs/common.py.
    recipe: Value in the recipe.
    values: Value of each run.
    differs: Whether each run differs from the recipe, from the defaults where
      there is no recipe, and from the first run where there is neither.
  """

  name: str
  default: Any
  recipe: Any
  values: tuple[Any, ...]
  differs: tuple[bool, ...]


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns fields by "section.field".

  Args:
    config: Sections as nested mappings, as in config.json.
  """
  fields: dict[str, Any] = {}
  for name, value in config.items():
    if isinstance(value, Mapping) and value:
      fields |= {f"{name}.{key}": one for key, one in flat(value).items()}
    else:
      fields[name] = value
  return fields


def load(path: str | pathlib.Path) -> Recipe:
  """Reads a recipe file, which is Python and is run.

  Args:
    path: A file with `get_config()`, of the user or of this checkout; what
      follows a colon is the function's argument.

  Returns:
    The recipe.

  Raises:
    ValueError: It cannot be read.
  """
  file, colon, argument = str(path).partition(":")
  path = pathlib.Path(file).resolve()
  # So that `from configs import common` works wherever the command starts.
  root = str(path.parent.parent)
  if root not in sys.path:
    sys.path.append(root)
  try:
    get_config = runpy.run_path(str(path))["get_config"]
    made = get_config(argument) if colon else get_config()
    config = json.loads(made.to_json_best_effort())
  # A recipe is the user's own Python file and may fail in any way.
  except (Exception, SystemExit) as error:  # noqa: BLE001
    reason = " ".join(str(error).split()) or type(error).__name__
    raise ValueError(
      f"the recipe {path} cannot be read: {reason}; name a file as "
      "configs/tiny.py."
    ) from error
  name = f"{path.parent.name}/{path.name}{colon}{argument}"
  return Recipe(name, flat(config))


def defaults() -> Recipe | None:
  """Returns every field with its default, None outside of a checkout."""
  path = RECIPES / _DEFAULTS
  return load(path) if path.is_file() else None


def recipe_of(found: Sequence[runs.Run]) -> Recipe | None:
  """Returns the recipe that some runs were started with.

  Args:
    found: Runs, at least one.

  Returns:
    The recipe of this checkout that all of them name; else the nearest one,
    which is None outside of a checkout or without a configuration.
  """
  names = [run.made_with.get("recipe") for run in found]
  if isinstance(names[0], str) and names.count(names[0]) == len(names):
    file, colon, argument = names[0].partition(":")
    name = pathlib.PurePath(file).name
    if name in {path.name for path in RECIPES.glob("*.py")}:
      with contextlib.suppress(ValueError):
        return load(f"{RECIPES / name}{colon}{argument}")
  return nearest(found)


def nearest(found: Sequence[runs.Run]) -> Recipe | None:
  """Returns the recipe of this checkout that differs least from some runs.

  Args:
    found: Runs; those without a configuration do not count.

  Returns:
    The recipe with the fewest differing fields, the first by name where
    several have; None outside of a checkout or without a configuration.
  """
  default = defaults()
  configs = [
    # A field that is younger than the run had its default's effect.
    {**(default.fields if default else {}), **flat(run.config)}
    for run in found
    if run.config
  ]
  if not configs or not RECIPES.is_dir():
    return None
  recipes = []
  for path in sorted(RECIPES.glob("*.py")):
    if path.name in (_DEFAULTS, "__init__.py"):
      continue
    # A recipe that is being written must not keep a report from its reader.
    with contextlib.suppress(ValueError):
      recipes.append(load(path))
  if not recipes:
    return None
  best = min(
    recipes,
    key=lambda recipe: sum(
      _is_other(recipe.fields.get(name, ABSENT), value)
      for config in configs
      for name, value in config.items()
    ),
  )
  return best._replace(is_guessed=True)


def rows(
  found: Sequence[runs.Run], *, default: Recipe | None, recipe: Recipe | None
) -> list[Row]:
  """Lays all fields side by side.

  Args:
    found: Runs, at least one.
    default: The defaults, if known.
    recipe: The recipe, if known.

  Returns:
    A row for each field that a run has, in the order of the defaults.
  """
  configs = [flat(run.config) for run in found]
  order = dict.fromkeys(default.fields if default else ())
  order |= {name: None for config in configs for name in sorted(config)}
  base = recipe or default
  table = []
  for name in order:
    values = tuple(config.get(name, ABSENT) for config in configs)
    if all(value is ABSENT for value in values):
      continue
    expected = base.fields.get(name, ABSENT) if base else values[0]
    table.append(
      Row(
        name,
        default.fields.get(name, ABSENT) if default else ABSENT,
        recipe.fields.get(name, ABSENT) if recipe else ABSENT,
        values,
        tuple(_is_other(expected, value) for value in values),
      )
    )
  return table


def differing(table: Sequence[Row]) -> list[Row]:
  """Returns the rows in which a run differs from its base or from another."""
  return [
    row
    for row in table
    if any(row.differs)
    or any(_is_other(row.values[0], value) for value in row.values)
  ]


def _is_other(one: Any, other: Any) -> bool:
  """Whether both have the field, with other values."""
  if one is ABSENT or other is ABSENT:
    return False
  # 1 and 1.0 are one setting, 1 and True are not.
  return one != other or isinstance(one, bool) != isinstance(other, bool)
