"""What each command says of itself fits a screen and names what exists."""

import re

import pytest

from configs import common
from toolrl_jax import convert, evaluate, plan, report, serve, train


def _texts(capsys):
  written = {}
  for name, command in (
    ("toolrl-convert", convert),
    ("toolrl-report", report),
  ):
    with pytest.raises(SystemExit) as caught:
      command.run(["--help"])
    assert caught.value.code == 0
    written[name] = capsys.readouterr().out
  return {
    "toolrl-train": train.USAGE,
    "toolrl-evaluate": evaluate.USAGE,
    "toolrl-plan": plan.USAGE,
    "toolrl-serve": serve.USAGE,
    **written,
  }


def test_help_fits_a_screen_and_shows_examples(capsys):
  for name, text in _texts(capsys).items():
    lines = text.rstrip().splitlines()
    assert len(lines) <= 45, name
    assert max(map(len, lines)) <= 80, name
    assert re.search("^examples:", text, flags=re.MULTILINE | re.IGNORECASE)
    assert len(re.findall(f"^  {name} ", text, flags=re.MULTILINE)) >= 3, name
    assert "status" in text.lower(), name


def test_help_names_fields_files_and_recipes_that_exist(capsys, root_dir):
  config = common.get_config()
  num_names = 0
  for text in _texts(capsys).values():
    for section, field in re.findall(r"config\.(\w+)\.(\w+)=", text):
      assert section == "section" or field in config[section], field
      num_names += 1
    for path in re.findall(r"\b(?:docs|configs)/[\w.]+\.(?:md|py)", text):
      assert (root_dir / path).is_file(), path
      num_names += 1
  assert num_names > 15
