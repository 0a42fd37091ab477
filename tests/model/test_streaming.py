"""A checkpoint of 4B parameters goes through a host that could not hold it.

Figures: docs/real_weights.md.

    uv run pytest tests/model/test_streaming.py -m slow -n 0 -s
"""

import os
import pathlib
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest

from toolrl_jax.model import layout, presets, safetensors_files, weights

CONFIG = presets.lookup("qwen3-4b")
# As the model's own repository is split.
SHARD_BYTES = 4_000_000_000
_LOAD = """
import jax, sys
from toolrl_jax.model import sharding, weights
mesh = sharding.make_mesh(data=1, fsdp=16, tensor=1)
weights.load(sys.argv[1], dtype="bfloat16", shardings=lambda config:
  sharding.param_shardings(config, mesh))
"""


def _values(tensor) -> np.ndarray:
  """Returns values of a tensor that no other tensor has."""
  rng = np.random.default_rng(abs(hash(tensor.hf_name)) % 2**32)
  row = rng.standard_normal(tensor.shape[-1], np.float32)
  return np.broadcast_to(row, tensor.shape).astype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer_dir):
  """A folder of Qwen3-4B's shape, 8 GB in files of at most 4 GB."""
  folder = tmp_path_factory.mktemp("model") / "qwen3-4b"
  folder.mkdir()
  weights.save_description(
    folder, CONFIG, dtype="bfloat16", tokenizer_from=tokenizer_dir
  )
  safetensors_files.write(
    folder,
    [
      safetensors_files.Piece(
        tensor.hf_name,
        tensor.shape,
        np.dtype(ml_dtypes.bfloat16),
        lambda tensor=tensor: np.ascontiguousarray(_values(tensor)),
      )
      for tensor in layout.stored(CONFIG)
    ],
    max_shard_bytes=SHARD_BYTES,
  )
  return folder


def _peak(arguments, **environment) -> tuple[int, int]:
  """Runs a process; returns its largest own and its largest whole memory.

  Own memory leaves out the pages of the files that it reads.
  """
  process = subprocess.Popen(
    arguments, env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment
  )
  own = whole = 0
  while process.poll() is None:
    fields = {}
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    for line in status.splitlines():
      name, _, value = line.partition(":")
      fields[name] = value.split()
    if "RssAnon" in fields:
      own = max(own, int(fields["RssAnon"][0]) * 1024)
      whole = max(whole, int(fields["VmHWM"][0]) * 1024)
    time.sleep(0.01)
  assert process.returncode == 0
  return own, whole


def _largest_file(folder) -> int:
  return max(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_converting_a_4b_checkpoint_stays_under_one_and_a_half_files(
  checkpoint, tmp_path
):
  largest = _largest_file(checkpoint)
  own, whole = _peak(
    [sys.executable, "-m", "toolrl_jax.convert"]
    + [str(checkpoint), str(tmp_path / "out"), "--max-shard-gb=4"]
  )
  sys.stdout.write(
    f"\nconvert: {own / 1e9:.2f} GB own, {whole / 1e9:.2f} GB with the pages "
    f"of the file, of {largest / 1e9:.2f} GB in the largest file\n"
  )
  assert whole < 1.5 * largest
  names = [path.name for path in checkpoint.glob("model*")]
  assert len(names) == 4
  for name in names:
    command = ["cmp", str(checkpoint / name), str(tmp_path / "out" / name)]
    subprocess.run(command, check=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_loading_a_4b_checkpoint_onto_16_devices_stays_under_it(checkpoint):
  largest = _largest_file(checkpoint)
  held = layout.num_params(CONFIG) * 2
  flags = "--xla_force_host_platform_device_count=16"
  own, _ = _peak(
    [sys.executable, "-c", _LOAD, str(checkpoint)], XLA_FLAGS=flags
  )
  sys.stdout.write(
    f"\nload: {(own - held) / 1e9:.2f} GB beside the {held / 1e9:.2f} GB that "
    f"the simulated devices hold; largest file {largest / 1e9:.2f} GB\n"
  )
  assert own - held < 1.5 * largest
