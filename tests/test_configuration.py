"""The command line: every mistake is one line that names the remedy."""

import importlib
import pathlib

import pytest

from configs import common
from toolrl_jax import command_line, configuration, scoring

_RECIPES = sorted(
  path.stem
  for path in (pathlib.Path(__file__).parent.parent / "configs").glob("*.py")
  if path.stem not in ("__init__", "common")
)


def _load(*arguments):
  return command_line.load(["toolrl-train", *arguments], "usage")


@pytest.mark.parametrize(
  ("arguments", "name"),
  [
    (["--config=configs/tiny.py", "--config.seed=1"], "tiny.py"),
    (["--config", "/a/b/mine.py:gpu"], "mine.py:gpu"),
    (["--config.seed=1"], ""),
    (["--config"], ""),
  ],
)
def test_recipe_name_is_that_of_the_file(arguments, name):
  assert command_line.recipe_name(["toolrl-train", *arguments]) == name


@pytest.fixture
def recipe(tmp_path):
  """A recipe file that starts from common.py and sets what `body` says."""

  def write(body: str) -> str:
    folder = tmp_path / "configs"
    folder.mkdir(exist_ok=True)
    path = folder / "mine.py"
    path.write_text(
      "from configs import common\n\n\ndef get_config():\n"
      "  config = common.get_config()\n"
      "  config.model.path = 'bundled:tiny'\n"
      "  config.data.train_path = 'synthetic:8'\n"
      f"  {body}\n  return config\n"
    )
    return str(path)

  return write


def test_load_reads_overrides_of_every_type(recipe, tmp_path):
  config, workdir = _load(
    f"--config={recipe('pass')}",
    "--config.rollout.temperature=0.7",
    "--config.rollout.group_size=6",
    "--config.checkpoint.export=False",
    "--config.data.prompt_buckets=(64,2048)",
    f"--workdir={tmp_path}/run",
  )
  assert config.rollout.temperature == 0.7
  assert config.rollout.group_size == 6
  assert config.checkpoint.export is False
  assert tuple(config.data.prompt_buckets) == (64, 2048)
  assert workdir == tmp_path / "run"


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    (
      ["--config.rollout.temprature=1"],
      "did you mean config.rollout.temperature",
    ),
    (["--config.rollout.server=jetsream"], "did you mean 'jetstream'"),
    (
      ["--config.rollout.group_size=many"],
      "config.rollout.group_size must be a whole number, as 4, got 'many'.",
    ),
    (["--config.rollout.group_size=1.5"], "a whole number"),
    (["--config.loss.clip_low=abc"], "a number, as 0.2, got 'abc'"),
    (["--config.logging.tensorboard=maybe"], "true or false"),
    (["--config.rollout.group_size=1"], "at least 2"),
    (["--config.selection.keep=9"], "config.selection.keep must be 0 or in"),
    (["--config.rollout.temperature=0"], "above 0 for training"),
    (["--config.rollout.temperature=nan"], "finite"),
    (["--config.loss.clip_low=2"], "in [0, 1]"),
    (["--config.data.prompt_buckets=(64,32)"], "rise strictly"),
    (["--config.data.prompt_buckets=(64,)"], "must hold 2048 tokens"),
    (["--config.data.prompt_buckets=('a',)"], "whole numbers"),
    (["--config.seed=99999999999999999999"], "config.seed must be in"),
    (["--config.optimizer.weight_decay=nan"], "finite"),
    (["--config.optimizer.learning_rate=inf"], "finite"),
    (["--config.optimizer.b1=1"], "config.optimizer.b1"),
    (["--config.mesh.cpu_devices=100000"], "cpu_devices"),
    (["--config.data.train_path="], "train_path is empty"),
    (["--config.model.path="], "model.path is empty"),
    (["stray"], "stray"),
    (["--wordkir=x"], "--wordkir is no flag; did you mean --workdir?"),
    (["--zzz=x"], "--zzz is no flag; see --help."),
    (["--config=other.py"], "--config names one file, got"),
    (["--workdir=gs://"], "gs://BUCKET/FOLDER"),
    (["--workdir=gs:///run"], "gs://BUCKET/FOLDER"),
    (["--workdir=~nobody_here/x"], "--workdir must be a path"),
    (["--workdir=" + "x/" * 3000], "--workdir must be a path"),
    ([f"--config.rollout.group_size={10**19}"], "in [1, 4096], got 1000"),
    ([f"--config.rollout.slots={10**20}"], "config.rollout.slots must be in"),
    ([f"--config.sampler.max_steps={10**12}"], "in [0, 2147483647]"),
    ([f"--config.mesh.data={10**12}"], "at most 2147483647"),
    (["--config.prompt.system=\udce9"], "config.prompt.system must be UTF-8"),
    (["--config.reward.name=" + "n" * 9000], "one of 'toolrl', 'n1'"),
    (["--config.benchmark.names=('bcfl',)"], "did you mean 'bfcl'?"),
  ],
)
def test_load_refuses_in_one_line(recipe, arguments, said):
  with pytest.raises(configuration.UsageError) as caught:
    _load(f"--config={recipe('pass')}", "--workdir=/tmp/x", *arguments)
  assert said in str(caught.value)
  assert "\n" not in str(caught.value)
  assert len(str(caught.value)) < 300


def test_load_names_the_nearest_recipe(root_dir):
  wrong = root_dir / "configs" / "tinny.py"
  with pytest.raises(configuration.UsageError, match=r"tiny\.py'\?$"):
    _load(f"--config={wrong}", "--workdir=/tmp/x")


@pytest.mark.parametrize(
  ("body", "said"),
  [
    ("config.rollout.temprature = 1", "temprature"),
    ("config.rollout.group_size = 'four'", "group_size"),
    ("raise RuntimeError('mine')", "mine"),
    ("this is no python", "could not be read"),
    ("return {}", "does not give all fields"),
    ("raise SystemExit('enough')", "enough"),
  ],
)
def test_load_refuses_a_recipe_that_fails(recipe, body, said):
  with pytest.raises(configuration.UsageError) as caught:
    _load(f"--config={recipe(body)}", "--workdir=/tmp/x")
  assert said in str(caught.value)
  assert "\n" not in str(caught.value)


def test_load_refuses_an_argument_that_the_recipe_does_not_take(recipe):
  with pytest.raises(configuration.UsageError) as caught:
    _load(f"--config={recipe('pass')}:small", "--workdir=/tmp/x")
  assert "takes 0 positional arguments" in str(caught.value)
  assert "Traceback" not in str(caught.value)


def test_load_needs_config_and_workdir(recipe):
  with pytest.raises(configuration.UsageError, match="--config=FILE"):
    _load("--workdir=/tmp/x")
  with pytest.raises(configuration.UsageError, match="there is no file"):
    _load("--config=nowhere.py", "--workdir=/tmp/x")
  with pytest.raises(configuration.UsageError, match="--workdir=DIR"):
    _load(f"--config={recipe('pass')}")


@pytest.mark.parametrize("name", _RECIPES)
def test_recipes_are_whole(name):
  config = importlib.import_module(f"configs.{name}").get_config()
  configuration.check(config)
  assert config.is_locked
  assert importlib.import_module(f"configs.{name}").__doc__


def test_choices_and_bounds_name_fields():
  config = common.get_config()
  for name in (*configuration.CHOICES, *configuration.BOUNDS):
    section, _, field = name.rpartition(".")
    assert field in (config[section] if section else config)


def test_reward_defaults_are_those_of_scoring():
  mapping = common.get_config().reward.to_dict()
  assert scoring.RewardOptions.from_mapping(
    mapping
  ) == scoring.RewardOptions.from_mapping({})
