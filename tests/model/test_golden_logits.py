"""The decoder against Hugging Face's models, as files and in the flesh."""

import json
import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.model import decoder, presets, weights

CASES = (
  "qwen2_tied",
  "qwen2_untied",
  "qwen3_tied",
  "llama_tied",
  "llama_untied",
)
MAX_ABS_DIFF = 2e-4


@pytest.fixture(scope="module")
def logits_dir(root_dir) -> pathlib.Path:
  return root_dir / "tests" / "golden" / "logits"


def all_logits(config, params, ids) -> np.ndarray:
  """Logits [tokens - 3, V] of one sequence, from its fourth token on."""
  # A dummy at the end keeps the last position's prediction.
  prompt, rest = ids[:4], np.append(ids[4:], 0)
  hidden = jax.jit(decoder.group_hidden, static_argnames="config")(
    params,
    jnp.asarray(prompt[None]),
    jnp.asarray([len(prompt)]),
    jnp.asarray(rest[None, None]),
    config=config,
  )
  return np.asarray(decoder.logits(params, hidden)[0, 0])


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case, logits_dir):
  config, params = weights.load(logits_dir / case)
  golden = np.load(logits_dir / case / "logits.npz")
  ids, expected = golden["ids_80"], golden["logits_80"]
  found = all_logits(config, params, ids)
  # From the last prompt position on.
  assert np.abs(found - expected[3:]).max() <= MAX_ABS_DIFF
  # The comparison is of numbers that differ from token to token.
  assert expected.std() > 0.5


def test_prefill_logits_equal_transformers(logits_dir):
  config, params = weights.load(logits_dir / "qwen3_tied")
  golden = np.load(logits_dir / "qwen3_tied" / "logits.npz")
  found, _, _ = jax.jit(decoder.prefill, static_argnames="config")(
    params,
    jnp.asarray(golden["ids_24"][None]),
    jnp.asarray([24]),
    config=config,
  )
  gap = np.abs(np.asarray(found[0]) - golden["logits_24"][-1]).max()
  assert gap <= MAX_ABS_DIFF


def test_logits_llama_scaling_matters(logits_dir):
  config, params = weights.load(logits_dir / "llama_tied")
  golden = np.load(logits_dir / "llama_tied" / "logits.npz")
  found = all_logits(
    config._replace(rope_scaling=None), params, golden["ids_80"]
  )
  assert np.abs(found - golden["logits_80"][3:]).max() > 0.05


def test_config_of_golden_checkpoints_reads_back(logits_dir):
  for case in CASES:
    folder = logits_dir / case
    config = weights.load_config(folder)
    written = presets.to_hf_config(config, "float32")
    assert presets.from_hf_config(written) == config
    saved = json.loads((folder / "config.json").read_text())
    for key in ("model_type", "architectures", "vocab_size", "head_dim"):
      if key in written:
        assert written[key] == saved[key]


@pytest.mark.hf_env
@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-qwen3", "tiny-llama"])
def test_export_loads_in_transformers(name, request, root_dir, tmp_path):
  config = presets.lookup(name)
  params = decoder.init_params(config, jax.random.key(3))
  weights.save(tmp_path / "export", config, params)
  ids = np.random.default_rng(0).integers(0, config.vocab_size, 60)
  (tmp_path / "ids.json").write_text(json.dumps([ids.tolist()]))
  script = root_dir / "tests" / "golden" / "make_logits.py"
  subprocess.run(
    [request.config.getoption("--hf-env"), script, "run"]
    + [tmp_path / "export", tmp_path / "ids.json", tmp_path / "out.npz"],
    check=True,
  )
  expected = np.load(tmp_path / "out.npz")["arr_0"]
  found = all_logits(config, params, ids)
  assert np.abs(found - expected[3:]).max() <= MAX_ABS_DIFF
