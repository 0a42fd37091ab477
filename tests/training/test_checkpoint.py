import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from toolrl_jax.training import checkpoint
from toolrl_jax.training.state import TrainState


def _state(value, where=None):
  """A state whose every number is `value`."""
  state = TrainState(
    step=jnp.asarray(value, jnp.int32),
    params={"kernel": jnp.full((4, 8), value, jnp.float32)},
    opt_state=({"mu": jnp.full((4, 8), value, jnp.bfloat16)},),
  )
  return state if where is None else jax.device_put(state, where)


def _open(directory, keep_last=2, keep_best=0):
  return checkpoint.RunCheckpoints(
    directory, keep_last=keep_last, keep_best=keep_best
  )


def _restored(directory):
  with _open(directory) as checkpoints:
    step, state, host = checkpoints.restore_latest(_state(0))
  return step, float(state.params["kernel"][0, 0]), host


def test_host_state_comes_back_exactly(tmp_path):
  rng = np.random.default_rng(0)
  host = {
    "rng": np.random.PCG64(5).state,  # holds integers of 128 bits
    "order": rng.permutation(100),
    "is_active": np.array([[True, False]]),
    "third": np.float32(1 / 3),
    "float": 0.1 + 0.2,
    "nested": [{"pair": (1, (None, "\u2603"))}, [], {}],
    "empty": np.zeros((0, 3), np.float64),
    "key": jax.random.key(7),
    "infinite": float("inf"),
  }
  with _open(tmp_path) as checkpoints:
    checkpoints.save(3, _state(3), host)
  step, value, got = _restored(tmp_path)
  assert (step, value) == (3, 3.0)
  key, got_key = host.pop("key"), got.pop("key")
  assert jax.random.uniform(key) == jax.random.uniform(got_key)
  for name in ("order", "is_active", "third", "empty"):
    wanted, found = host.pop(name), got.pop(name)
    assert type(found) is type(wanted) and found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
  assert got == host and isinstance(got["nested"][0]["pair"], tuple)


def test_save_rejects_what_cannot_come_back(tmp_path):
  with _open(tmp_path) as checkpoints:
    with pytest.raises(ValueError, match=r"host\.a\[1\] must hold .* got set"):
      checkpoints.save(1, _state(1), {"a": [0, {1}]})
    with pytest.raises(ValueError, match="keys of host.a must be text"):
      checkpoints.save(1, _state(1), {"a": {1: 2}})
    assert checkpoints.steps() == []


def test_restore_latest_of_an_empty_directory_is_none(tmp_path):
  with _open(tmp_path / "new") as checkpoints:
    assert checkpoints.restore_latest(_state(0)) is None


def test_save_is_not_changed_by_donation_behind_it(tmp_path):
  bump = jax.jit(
    lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0
  )
  state = _state(0)
  with _open(tmp_path, keep_last=4) as checkpoints:
    for step in range(1, 5):
      state = bump(state)
      host = {"seen": np.array([step])}
      checkpoints.save(step, state, host)
      host["seen"][0] = -1
    state = bump(state)
    checkpoints.wait()
    for step in (4, 3, 2, 1):
      got = checkpoints.restore_latest(state)
      assert got[0] == step and got[2]["seen"] == step
      for leaf in jax.tree.leaves(got[1]):
        assert np.all(np.asarray(leaf) == step)
      shutil.rmtree(tmp_path / str(step))
      checkpoints.close()
      checkpoints = _open(tmp_path, keep_last=4)


def test_restore_latest_places_on_another_mesh(tmp_path):
  devices = np.asarray(jax.devices()[:4])
  spread = NamedSharding(Mesh(devices, ("a",)), PartitionSpec())
  with _open(tmp_path) as checkpoints:
    checkpoints.save(1, _state(1, spread), {})
  mesh = Mesh(devices.reshape(2, 2), ("a", "b"))
  where = TrainState(
    NamedSharding(mesh, PartitionSpec()),
    NamedSharding(mesh, PartitionSpec("b", "a")),
    NamedSharding(mesh, PartitionSpec("a")),
  )
  template = _state(0, where)
  with _open(tmp_path) as checkpoints:
    _, state, _ = checkpoints.restore_latest(template)
  assert state.params["kernel"].sharding == where.params
  assert np.all(np.asarray(state.params["kernel"]) == 1)


def test_keep_last_and_keep_best(tmp_path):
  metrics = {1: 0.5, 2: 0.9, 3: None, 4: 0.7, 5: 0.1, 6: None}
  with _open(tmp_path, keep_last=2, keep_best=1) as checkpoints:
    for step, metric in metrics.items():
      checkpoints.save(step, _state(step), {}, metric=metric)
    checkpoints.wait()
    assert checkpoints.steps() == [2, 5, 6]
  # The best is known again after a restart.
  with _open(tmp_path, keep_last=1, keep_best=1) as checkpoints:
    checkpoints.save(7, _state(7), {}, metric=0.8)
    checkpoints.wait()
    assert checkpoints.steps() == [2, 7]


def test_save_leaves_a_step_that_is_on_disk(tmp_path):
  with _open(tmp_path) as checkpoints:
    checkpoints.save(1, _state(1), {"a": 1})
    checkpoints.save(1, _state(2), {"a": 2})
  assert _restored(tmp_path) == (1, 1.0, {"a": 1})


def test_restore_latest_falls_back_over_damage_and_leftovers(tmp_path):
  with _open(tmp_path, keep_last=3) as checkpoints:
    for step in (1, 2, 3):
      checkpoints.save(step, _state(step), {"at": step})
  (tmp_path / "9.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
  shutil.rmtree(tmp_path / "3" / "state" / "d")
  (tmp_path / "2" / "host" / "metadata").write_text('{"at": ')
  assert _restored(tmp_path) == (1, 1.0, {"at": 1})
  with _open(tmp_path, keep_last=3) as checkpoints:
    assert checkpoints.steps() == [1]
    checkpoints.save(2, _state(2), {"at": 2})
  assert _restored(tmp_path) == (2, 2.0, {"at": 2})
  assert (tmp_path / "corrupt-3").is_dir()


def test_restore_latest_refuses_when_no_step_fits(tmp_path):
  with _open(tmp_path) as checkpoints:
    checkpoints.save(1, _state(1), {})
    checkpoints.wait()
    template = _state(0)._replace(params={"kernel": jnp.zeros((5, 5))})
    with pytest.raises(ValueError, match="no checkpoint in .* fits this run"):
      checkpoints.restore_latest(template)
    assert checkpoints.steps() == [1]


_SAVER = """
import sys
import jax, jax.numpy as jnp
from toolrl_jax.training import checkpoint, state
jax.config.update("jax_platforms", "cpu")
bump = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
now = state.TrainState(
  jnp.zeros((), jnp.int32), {"kernel": jnp.zeros((500, 1000))}, ()
)
with checkpoint.RunCheckpoints(sys.argv[1], keep_last=1, keep_best=0) as saves:
  for step in range(1, 100_000):
    now = bump(now)
    saves.save(step, now, {"at": step})
"""


def test_a_run_killed_in_the_middle_of_a_save_restores_a_whole_step(
  tmp_path, root_dir
):
  process = subprocess.Popen(
    [sys.executable, "-c", _SAVER, str(tmp_path)],
    cwd=root_dir,
    env=os.environ | {"PYTHONPATH": str(root_dir)},
    stderr=subprocess.DEVNULL,
  )
  try:
    deadline = time.monotonic() + 240
    while not _is_saving_after_a_whole_step(tmp_path):
      assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
  finally:
    process.kill()
    process.wait()
  template = TrainState(
    jnp.zeros((), jnp.int32), {"kernel": jnp.zeros((500, 1000))}, ()
  )
  with _open(tmp_path, keep_last=1) as checkpoints:
    newest = max(checkpoints.steps())
    step, state, host = checkpoints.restore_latest(template)
    assert step == newest >= 1 and host == {"at": step}
    assert state.step == step
    assert np.all(np.asarray(state.params["kernel"]) == step)
    checkpoints.save(step + 1, state, {"at": step + 1})
    checkpoints.wait()
    assert checkpoints.steps() == [step + 1]


def _is_saving_after_a_whole_step(directory: pathlib.Path) -> bool:
  names = [path.name for path in directory.glob("*")]
  return any(name.isdigit() for name in names) and any(
    "orbax-checkpoint-tmp" in name for name in names
  )


def test_restore_latest_finds_a_flipped_bit_of_the_host_state(tmp_path):
  with _open(tmp_path) as checkpoints:
    checkpoints.save(1, _state(1), {"word": "first"})
    checkpoints.save(2, _state(2), {"word": "second"})
  path = tmp_path / "2" / "host" / "metadata"
  path.write_text(path.read_text().replace("second", "sesond"))
  assert _restored(tmp_path) == (1, 1.0, {"word": "first"})
  assert (tmp_path / "corrupt-2").is_dir()


def test_restore_latest_finds_a_flipped_bit_of_the_state(tmp_path):
  # Bits that no compression can shorten are stored as they are, so that a
  # flipped one breaks no format.
  bits = np.random.default_rng(0).integers(0, 2**32, (64, 64), np.uint32)
  noise = jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.float32)
  with _open(tmp_path) as checkpoints:
    for step in (1, 2):
      state = _state(step)._replace(params={"kernel": noise})
      checkpoints.save(step, state, {})
  (path,) = (
    path
    for path in (tmp_path / "2" / "state").rglob("*")
    if path.is_file() and bits[:2].tobytes() in path.read_bytes()
  )
  data = bytearray(path.read_bytes())
  data[data.index(bits[1].tobytes())] ^= 4
  path.write_bytes(data)
  with _open(tmp_path) as checkpoints:
    step, state, _ = checkpoints.restore_latest(state)
  assert step == 1
  got = jax.lax.bitcast_convert_type(state.params["kernel"], jnp.uint32)
  np.testing.assert_array_equal(got, bits)


def test_digest_depends_on_values_and_places_but_not_on_the_mesh():
  state = _state(1)
  digest = checkpoint.digest(state, {})
  mesh = Mesh(np.asarray(jax.devices()[:2]), ("d",))
  spread = jax.device_put(
    state._replace(step=None), NamedSharding(mesh, PartitionSpec("d"))
  )
  assert checkpoint.digest(spread._replace(step=state.step), {}) == digest
  one = state.params["kernel"].at[1, 2].set(1.0000001)
  changed = state._replace(params={"kernel": one})
  assert checkpoint.digest(changed, {}) != digest
  other = state._replace(params={"kernel": one[::-1]})
  assert checkpoint.digest(other, {}) != checkpoint.digest(changed, {})
  assert checkpoint.digest(state, {"a": 1}) != digest
