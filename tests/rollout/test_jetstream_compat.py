import importlib.metadata
import importlib.util
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.rollout import jetstream_compat

# The whole rollout package in a fresh process, with logging as it was before.
_IMPORT = """
import logging, sys
root = logging.getLogger()
root.setLevel(logging.ERROR)
from toolrl_jax.rollout import collect, jetstream_compat
assert root.level == logging.ERROR and root.handlers == [], root.handlers
names = [n for n in sys.modules if n.split(".")[0] in ("tensorflow", "seqio")]
assert names == [], names
root.setLevel(logging.DEBUG)
root.addHandler(logging.StreamHandler(sys.stdout))
jetstream_compat.orchestrator.logging.info("one of its lines a step")
"""


def test_import_leaves_logging_alone_and_loads_no_tensorflow():
  process = subprocess.run(
    [sys.executable, "-c", _IMPORT], capture_output=True, text=True, timeout=400
  )
  assert process.returncode == 0, process.stderr
  assert process.stdout == ""


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-text", "seqio"])
def test_environment_holds_no_tensorflow_and_no_seqio(name):
  with pytest.raises(importlib.metadata.PackageNotFoundError):
    importlib.metadata.distribution(name)
  assert importlib.util.find_spec(name.replace("-", "_")) is None


def test_delete_pytree_deletes_device_arrays_only():
  array, handle = jnp.ones(3), np.array([7])
  tree = {"array": array, "handle": handle, "text": "x"}
  jetstream_compat.delete_pytree(tree)
  jetstream_compat.delete_pytree(tree)
  assert array.is_deleted()
  assert handle.tolist() == [7]
  assert jetstream_compat.orchestrator.delete_pytree is (
    jetstream_compat.delete_pytree
  )


def test_driver_thread_that_fails_leaves_the_process_alive(caplog):
  def fail():
    raise RuntimeError("in a thread")

  thread = jetstream_compat.orchestrator.JetThread(target=fail, name="generate")
  assert thread.daemon  # also where JetStream does not ask for it
  thread.start()
  thread.join(10)
  assert not thread.is_alive()
  assert "thread generate failed" in caplog.text
