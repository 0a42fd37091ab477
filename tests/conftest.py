"""Options, devices and shared files of the whole suite."""

import pathlib

import jax
import numpy as np
import pytest

# Eight simulated devices, before anything touches a backend. Single-device
# tests run on the first.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# What the marker "quick" holds: about two minutes that touch every stage.
_QUICK = (
  "data",
  "parsing",
  "model/test_decode.py",
  "rollout/test_jetstream_compat.py",
  "rollout/test_sampling.py",
  "test_configuration.py",
  "test_project.py",
  "training/test_checkpoint.py",
  "training/test_groups.py",
  "training/test_metrics.py",
  "training/test_profile.py",
  "training/test_step_metrics.py",
  "training/test_update.py",
)

# Packages of extras; tests that need one are skipped without it.
_EXTRAS = ("libtpu", "lm_eval")


def pytest_addoption(parser):
  parser.addoption(
    "--real-weights", default="", help="path of a real Qwen GGUF"
  )
  parser.addoption(
    "--hf-env", default="", help="Python of an environment with torch"
  )


def pytest_collection_modifyitems(config, items):
  """Marks subsets, and leaves out what needs something not given."""
  tests = _ROOT / "tests"
  needs = {
    "real_weights": (config.getoption("--real-weights"), "--real-weights=PATH"),
    "hf_env": (config.getoption("--hf-env"), "--hf-env=PYTHON"),
    "slow": ("slow" in config.getoption("-m"), "-m slow"),
  }
  for item in items:
    name = item.path.relative_to(tests).as_posix()
    if name.startswith(_QUICK):
      item.add_marker(pytest.mark.quick)
    reasons = [mark.kwargs["reason"] for mark in item.iter_markers("skipif")]
    if any(package in reason for package in _EXTRAS for reason in reasons):
      item.add_marker(pytest.mark.extras)
    for marker, (given, how) in needs.items():
      if marker in item.keywords and not given:
        item.add_marker(pytest.mark.skip(reason=f"needs {how}"))


@pytest.fixture(scope="session")
def root_dir() -> pathlib.Path:
  """The root of the checkout."""
  return _ROOT


@pytest.fixture(scope="session")
def shared_dir() -> pathlib.Path:
  """The folder of real rows and benchmarks beside the checkout."""
  path = _ROOT.parent / "shared"
  if not path.is_dir():
    pytest.skip("needs the data folder ../shared beside the checkout")
  return path


@pytest.fixture(scope="session")
def make_rollouts():
  """Makes rollouts [1, G, T] of G lists of token ids."""
  # Not above: the checks of shapes hook into the import.
  from toolrl_jax import types

  def make(token_ids):
    size = max(map(len, token_ids))
    mask = np.array([[i < len(ids) for i in range(size)] for ids in token_ids])
    padded = np.array([[*ids, *[0] * (size - len(ids))] for ids in token_ids])
    zeros = np.zeros((1, *mask.shape), np.float32)
    finish = np.full((1, len(token_ids)), types.FINISH_STOP, np.int32)
    return types.Rollouts(
      padded[None].astype(np.int32), mask[None], zeros, zeros, finish
    )

  return make
