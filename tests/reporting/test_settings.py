"""Configurations of runs beside recipes and defaults."""

import json

import pytest

from configs import tiny
from toolrl_jax.reporting import runs, settings


def _config(**changes):
  config = tiny.get_config()
  for name, value in changes.items():
    section, field = name.split("__")
    config[section][field] = value
  return config


@pytest.fixture
def changed(write_run, tmp_path):
  return runs.read(
    write_run(
      tmp_path / "changed",
      num_steps=1,
      config=_config(rollout__group_size=16, selection__keep=0),
    )
  )


def test_nearest_finds_the_recipe_of_a_changed_run(changed):
  recipe = settings.nearest([changed])
  assert (recipe.name, recipe.is_guessed) == ("configs/tiny.py", True)
  # Of an older version: evaluate_tiny.py, which is tiny.py with benchmarks, is
  # no nearer for it.
  old = {k: v for k, v in changed.config.items() if k != "benchmark"}
  assert settings.nearest([changed._replace(config=old)]) == recipe
  assert settings.nearest([changed._replace(config={})]) is None


@pytest.mark.parametrize(
  ("names", "expected"),
  [
    # tiny.py is nearer, but the run says what it was started with.
    (("tiny_sft.py",), ("configs/tiny_sft.py", False)),
    (
      ("qwen25_0p5b_colab.py:tpu",),
      ("configs/qwen25_0p5b_colab.py:tpu", False),
    ),
    (("tiny_sft.py", "tiny_sft.py"), ("configs/tiny_sft.py", False)),
    (("tiny_sft.py", "tiny.py"), ("configs/tiny.py", True)),
    # Of somebody else's checkout, no text, and no recipe for what it names.
    (("mine.py",), ("configs/tiny.py", True)),
    (([1],), ("configs/tiny.py", True)),
    (("qwen25_0p5b_colab.py:abacus",), ("configs/tiny.py", True)),
    (("",), ("configs/tiny.py", True)),
    (("x" * 5000,), ("configs/tiny.py", True)),
    (("tiny.py\0",), ("configs/tiny.py", True)),
  ],
)
def test_recipe_is_the_one_that_all_runs_name(changed, names, expected):
  found = [changed._replace(made_with={"recipe": name}) for name in names]
  recipe = settings.recipe_of(found)
  assert (recipe.name, recipe.is_guessed) == expected


def test_a_folder_cannot_have_a_file_of_its_own_run(changed, tmp_path):
  ran = tmp_path / "ran"
  recipe = tmp_path / "evil.py"
  recipe.write_text(f"open({str(ran)!r}, 'w')\n")
  for name in (str(recipe), f"../{recipe.name}", f"{recipe}:x"):
    settings.recipe_of([changed._replace(made_with={"recipe": name})])
  assert not ran.exists()


def test_rows_mark_what_differs_from_the_recipe(changed, write_run, tmp_path):
  plain = runs.read(write_run(tmp_path / "plain", num_steps=1))
  table = settings.rows(
    [plain, changed],
    default=settings.defaults(),
    recipe=settings.load(settings.RECIPES / "tiny.py"),
  )
  differing = {row.name: row for row in settings.differing(table)}
  assert list(differing) == ["rollout.group_size", "selection.keep"]
  row = differing["rollout.group_size"]
  assert (row.default, row.recipe, row.values) == (4, 8, (8, 16))
  assert row.differs == (False, True)
  names = [row.name for row in table]
  assert len(names) == len(set(names)) == len(settings.flat(changed.config))
  # Lists of config.json equal the tuples of the recipe.
  assert "data.prompt_buckets" in names


def test_rows_without_recipes_compare_with_the_first_run(
  changed, write_run, tmp_path
):
  plain = runs.read(write_run(tmp_path / "plain", num_steps=1))
  table = settings.rows([plain, changed], default=None, recipe=None)
  assert [row.name for row in settings.differing(table)] == [
    "rollout.group_size", "selection.keep",
  ]  # fmt: skip
  assert (
    settings.rows([plain._replace(config={})], default=None, recipe=None) == []
  )


def test_a_field_of_another_version_is_absent_and_no_difference(changed):
  config = json.loads(json.dumps(changed.config))
  del config["rollout"]["unstack_layers"]
  config["rollout"] |= {"group_size": 8, "old_field": "x"}
  config["selection"]["keep"] = 4
  recipe = settings.load(settings.RECIPES / "tiny.py")
  run = changed._replace(config=config)
  table = settings.rows([run], default=settings.defaults(), recipe=recipe)
  by_name = {row.name: row for row in table}
  assert by_name["rollout.old_field"].recipe is settings.ABSENT
  assert "rollout.unstack_layers" not in by_name
  assert settings.differing(table) == []


def test_load_says_in_one_line_why_a_recipe_cannot_be_read(tmp_path):
  bad = tmp_path / "bad.py"
  bad.write_text("import sys\nsys.exit('no\\nway')")
  for path in (bad, tmp_path / "none.py"):
    with pytest.raises(ValueError, match="cannot be read") as caught:
      settings.load(path)
    assert "\n" not in str(caught.value)


def test_true_is_no_one():
  table = settings.rows(
    [runs.Run("r", None, {"a": {"b": True}}, {}, (), {}, {}, {}, 0, (), ())],
    default=None,
    recipe=settings.Recipe("x", {"a.b": 1}),
  )
  assert table[0].differs == (True,)
