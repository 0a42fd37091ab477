"""The command toolrl-convert, run as a user runs it."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax import convert
from toolrl_jax.model import decoder, presets, tokenizer, weights
from toolrl_jax.training import checkpoint, state

CONFIG = presets.lookup("tiny-qwen3")._replace(vocab_size=320)


def random_params(config, dtype, seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), dtype),
    decoder.param_shapes(config),
  )


@pytest.fixture(scope="module")
def params():
  return random_params(CONFIG, jnp.bfloat16, 0)


@pytest.fixture
def hf_dir(tmp_path, params, tokenizer_dir):
  folder = tmp_path / "hf"
  weights.save(folder, CONFIG, params, tokenizer_from=tokenizer_dir)
  return folder


def fails(capsys, *arguments, words):
  """Asserts status 2, one line with the words, and no destination."""
  with pytest.raises(SystemExit) as caught:
    convert.run([str(part) for part in arguments])
  assert caught.value.code == 2
  captured = capsys.readouterr()
  assert captured.out == ""
  assert captured.err.startswith("toolrl-convert: ")
  assert captured.err.count("\n") == 1
  assert words in captured.err


def test_run_copies_a_folder_bit_for_bit(hf_dir, tmp_path, capsys):
  convert.run([str(hf_dir), str(tmp_path / "out")])
  assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
  names = sorted(path.name for path in hf_dir.iterdir())
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
  for name in names:
    assert (tmp_path / "out" / name).read_bytes() == (
      (hf_dir / name).read_bytes()
    )


def test_run_changes_the_dtype_and_splits(
  hf_dir, tmp_path, params, same_params
):
  convert.run(
    [str(hf_dir), str(tmp_path / "out"), "--dtype=float32"]
    + ["--max-shard-gb=0.00002"]
  )
  index = tmp_path / "out" / "model.safetensors.index.json"
  assert len(set(json.loads(index.read_text())["weight_map"].values())) > 2
  _, found = weights.load(tmp_path / "out")
  same_params(found, jax.tree.map(lambda x: x.astype(jnp.float32), params))


def test_run_goes_to_orbax_and_back(hf_dir, tmp_path, params, same_params):
  convert.run([str(hf_dir), str(tmp_path / "orbax"), "--to=orbax"])
  assert not (tmp_path / "orbax" / "model.safetensors").exists()
  convert.run([str(tmp_path / "orbax"), str(tmp_path / "back")])
  config, found = weights.load(tmp_path / "back", dtype=jnp.bfloat16)
  assert config == CONFIG
  same_params(found, params)
  for name in ("model.safetensors", "tokenizer.json", "config.json"):
    assert (tmp_path / "back" / name).read_bytes() == (
      (hf_dir / name).read_bytes()
    )


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, tokenizer_dir):
  """The folder of a run that saved two steps."""
  folder = tmp_path_factory.mktemp("run")
  config = presets.lookup("tiny-llama")
  optimizer = state.make_optimizer(1e-3)
  directory = folder / "checkpoints"
  with checkpoint.RunCheckpoints(directory, keep_last=2, keep_best=0) as saved:
    for step in (3, 7):
      params = random_params(config, jnp.float32, step)
      saved.save(step, state.init_state(params, optimizer), {"step": step})
    saved.wait()
  model = {"path": "", "preset": "tiny-llama", "tokenizer": str(tokenizer_dir)}
  model["param_dtype"] = "float32"
  (folder / "config.json").write_text(json.dumps({"model": model}))
  return folder


@pytest.mark.parametrize(
  ("arguments", "step"), [([], 7), (["--from=workdir", "--step=3"], 3)]
)
def test_run_exports_a_step_of_a_run(
  arguments, step, workdir, tmp_path, same_params
):
  convert.run([str(workdir), str(tmp_path / "out"), *arguments])
  config, found = weights.load(tmp_path / "out")
  assert config == presets.lookup("tiny-llama")
  same_params(found, random_params(config, jnp.float32, step))
  assert tokenizer.load(tmp_path / "out").eos_token == "<|im_end|>"
  assert weights.stop_ids(tmp_path / "out") == (2,)


def test_run_names_the_mistake_in_one_line(hf_dir, workdir, tmp_path, capsys):
  out = tmp_path / "out"
  fails(capsys, tmp_path / "absent", out, words="no checkpoint at")
  fails(capsys, hf_dir, words="required: dst")
  fails(capsys, hf_dir, out, "--dtype=int8", words="invalid choice: 'int8'")
  fails(capsys, hf_dir, out, "--step=3", words="--step is for the workdir")
  fails(capsys, workdir, out, "--step=4", words="must be one of 3, 7")
  fails(capsys, hf_dir, workdir, words="holds checkpoints, which an export")
  fails(capsys, hf_dir, hf_dir, words="DST is SRC")
  fails(capsys, hf_dir, hf_dir / "a", words="lies among its files")
  inside = workdir / "checkpoints" / "77"
  fails(capsys, workdir, inside, words="lies among its files")
  fields = json.loads((hf_dir / "config.json").read_text())
  for name, value in (
    ("hidden_size", "64"),
    ("num_hidden_layers", -1),
    ("num_hidden_layers", 10_000_000),
    ("num_key_value_heads", True),
    ("rope_theta", float("nan")),
  ):
    (hf_dir / "config.json").write_text(json.dumps({**fields, name: value}))
    fails(capsys, hf_dir, out, words=f"{name} must be a")
  (hf_dir / "config.json").write_text("[" * 100_000)
  fails(capsys, hf_dir, out, words="is not readable JSON")
  (hf_dir / "config.json").write_text(json.dumps(fields))
  fails(capsys, "", out, words="path of the checkpoint is empty")
  for size in ("inf", "nan", "0", "-1"):
    fails(capsys, hf_dir, out, f"--max-shard-gb={size}", words="must be in")
  (hf_dir / "model.safetensors").write_bytes(b"cut")
  fails(capsys, hf_dir, out, words="no whole safetensors file")
  left = sorted(path.name for path in tmp_path.iterdir())
  assert left == ["hf"]


def test_run_names_a_damaged_run(workdir, tmp_path, capsys):
  broken = tmp_path / "run"
  shutil.copytree(workdir, broken)
  fields = json.loads((broken / "config.json").read_text())
  saved = broken / "checkpoints" / "7" / "state"
  for preset, words in (
    ("tiny-qwen2", "do not hold layers/k_proj/bias"),
    ("tiny", "do not load"),
  ):
    fields["model"]["preset"] = preset
    (broken / "config.json").write_text(json.dumps(fields))
    words = f"the parameters in {saved} {words}"
    fails(capsys, broken, tmp_path / "out", words=words)
  (broken / "config.json").write_text("{}")
  fails(capsys, broken, tmp_path / "out", words="not the configuration of a")
  shutil.rmtree(broken / "checkpoints" / "3")
  shutil.rmtree(broken / "checkpoints" / "7")
  (broken / "config.json").write_text(json.dumps(fields))
  fails(capsys, broken, tmp_path / "out", words="holds no saved step")
  assert not (tmp_path / "out").exists()


def test_run_leaves_the_old_folder_when_it_fails(hf_dir, tmp_path, capsys):
  convert.run([str(hf_dir), str(tmp_path / "out")])
  capsys.readouterr()
  before = (tmp_path / "out" / "model.safetensors").read_bytes()
  (hf_dir / "tokenizer.json").write_text("{")
  fails(capsys, hf_dir, tmp_path / "out", words="does not load")
  assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
  left = sorted(path.name for path in tmp_path.iterdir())
  assert left == ["hf", "out"]
