"""What the package's checkers accept, on real entries and made ones."""

import json
import pathlib
import subprocess

import pytest

from toolrl_jax.evaluation import (
  bfcl,
  bfcl_environment,
  bfcl_oracle,
  bfcl_process,
)

_LIMITS = bfcl_process.Limits(request_secs=60.0, conversation_secs=120.0)


def _once(calls):
  """An outcome of one step, as a file would hold it."""
  documents = [{"name": name, "arguments": args} for name, args in calls]
  return {"turns": [[{"calls": documents}]], "stopped": ""}


def _gold_calls(item):
  return [
    (call.name, dict(call.arguments)) for call in bfcl_oracle.turns(item)[0]
  ]


@pytest.fixture(scope="module")
def simple():
  made = bfcl.Bfcl(
    categories=["simple_python", "parallel"], max_items=90, limits=_LIMITS
  )
  yield made
  made.close()


# Types, optional parameters and texts as the package compares them; golds:
#   simple_python_31 {initial_velocity: [0], acceleration: [9.8], time: [5]}
#   simple_python_0  {base: [10], height: [5], unit: ["units", ""]}
#   simple_python_5  {a: [3], b: [-11], c: [-4], root_type: ["all"]}
#   simple_python_13 {.., interval: [[1.0, 3.0]], method: ["", "trapezoidal"]}
#   simple_python_89 {.., conditions: [{department: [..], school: [..]}], ..}
_FALL = {"initial_velocity": 0, "acceleration": 9.8, "time": 5}
_AREA = {"base": 10, "height": 5}
_CELLS = {"optical_density": 0.6, "dilution": 5}
_ROOTS = {"a": 3, "b": -11, "c": -4, "root_type": "all"}
_CURVE = {"function": "x**2", "interval": [1.0, 3.0]}
_FETCH = {
  "database_name": "StudentDB",
  "table_name": "students",
  "conditions": {"department": "Science", "school": "Bluebird HS"},
}


@pytest.mark.parametrize(
  ("number", "arguments", "is_right"),
  [
    (31, _FALL, True),
    (31, _FALL | {"acceleration": "9.8"}, False),
    (31, _FALL | {"acceleration": float("nan")}, False),
    (31, _FALL | {"initial_velocity": False}, False),  # bool for int
    # float: [0.6], integer: [5], float: [1e9, ""]
    (57, _CELLS | {"calibration_factor": 10**9}, True),  # int for a float
    (57, _CELLS | {"calibration_factor": 1e9}, True),
    (57, _CELLS | {"calibration_factor": "1000000000.0"}, False),
    (57, _CELLS | {"calibration_factor": True}, False),
    (0, _AREA, True),
    (0, _AREA | {"base": 10.0}, False),  # float for an int
    (0, _AREA | {"base": True}, False),
    (0, _AREA | {"unit": None}, False),
    (0, _AREA | {"unit": ""}, True),  # "" is among the alternatives
    (0, _AREA | {"unit": "Un-its"}, True),  # case and -_*^,./ are ignored
    (0, _AREA | {"unit": "unit"}, False),
    (0, _AREA | {"bogus": 1}, False),
    (0, {"base": 10}, False),  # a required one is missing
    (5, _ROOTS, True),
    (5, _ROOTS | {"root_type": ""}, False),
    (5, {"a": 3, "b": -11, "c": -4}, False),  # listed by gold without ""
    (13, _CURVE, True),
    (13, _CURVE | {"interval": [3.0, 1.0]}, False),  # order counts
    (13, _CURVE | {"interval": [1, 3]}, False),  # int inside a float list
    (89, _FETCH, True),
    (89, _FETCH | {"conditions": {"department": "Science"}}, False),
    (
      89,
      _FETCH | {"conditions": _FETCH["conditions"] | {"year": 1}},
      False,
    ),
    (
      89,
      _FETCH | {"conditions": _FETCH["conditions"] | {"school": ["x"]}},
      False,
    ),
  ],
)
def test_checker_compares_as_the_package_says(
  simple, number, arguments, is_right
):
  name = f"simple_python_{number}"
  item = next(item for item in simple.items() if item.id == name)
  function = next(iter(item.row["gold"][0]))
  scores = simple.score({name: _once([(function, arguments)])})
  assert scores.verdicts[name] == is_right


def test_order_of_parallel_calls_is_free_and_their_number_is_not(simple):
  items = [i for i in simple.items() if i.category == "parallel"][:20]
  turned = {i.id: _once(_gold_calls(i)[::-1]) for i in items}
  doubled = {i.id: _once(_gold_calls(i) * 2) for i in items}
  assert all(simple.score(turned).verdicts[i.id] for i in items)
  assert not any(simple.score(doubled).verdicts[i.id] for i in items)


def test_names_with_dots_both_ways(simple):
  underscored = bfcl.Bfcl(
    categories=["simple_python"],
    max_items=2,
    tool_names="underscored",
    tool_docs="json_schema",
    limits=_LIMITS,
  )
  try:
    item = underscored.items()[1]
    ask = next(underscored.converse(item))
    assert ask.tools[0]["name"] == "math_factorial"
    assert ask.tools[0]["parameters"]["type"] == "object"
    for bench, right in ((simple, "."), (underscored, "_")):
      for mark in "._":
        call = (f"math{mark}factorial", {"number": 5})
        verdicts = bench.score({item.id: _once([call])}).verdicts
        assert verdicts[item.id] == (mark == right)
  finally:
    underscored.close()


_GREEDY = """
import importlib, json, sys
worker = importlib.import_module("bfcl_worker")
package = worker.import_package()
documents = [{
  "name": "f",
  "parameters": {
    "type": "dict",
    "properties": {"x": {"type": "string"}},
    "required": ["x"],
  },
}]
gold = [{"f": {"x": ["a", "b"]}}, {"f": {"x": ["a"]}}]
print(json.dumps([
  package.ast.ast_checker(
    documents,
    [{"f": {"x": value}} for value in order],
    gold,
    package.languages.PYTHON,
    "parallel",
    "dotted",
  )["valid"]
  for order in ("ab", "ba", "aa", "bb")
]))
"""


def test_parallel_matching_is_greedy(tmp_path):
  # Gold {a or b}, {a}: "a, b" has a perfect matching, but "a" is taken first.
  environment = bfcl_environment.ensure()
  script = tmp_path / "greedy.py"
  folder = str(pathlib.Path(bfcl_process.__file__).parent)
  script.write_text(f"import sys; sys.path.append({folder!r})\n{_GREEDY}")
  done = subprocess.run(
    [str(environment.python), str(script)],
    env={"BFCL_PROJECT_ROOT": str(tmp_path)},
    capture_output=True,
    text=True,
  )
  # "a, a" passes; "b, b" does not.
  assert json.loads(done.stdout) == [False, True, True, False], done.stderr
