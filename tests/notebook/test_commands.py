"""Tests of toolrl_jax/notebook/commands.py."""

import os
import signal
import sys
import threading
import time

import pytest

from toolrl_jax.notebook import commands

# Says what a run says, and saves when it is told to stop.
_RUN = """
import signal, sys, time
def stop(number, frame):
  print("saved", flush=True)
  sys.exit(75)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, lambda *_: print("SIGINT", flush=True))
print("12:00:00 resumed from step 4", flush=True)
print("rows 50%", end="\\r", flush=True)
print("12:00:00 step 5/9  reward 1.5 right 0.2  left 0:01:00", flush=True)
time.sleep(60)
"""


def test_train_ends_with_the_line_of_the_command(tmp_path, capsys):
  with pytest.raises(commands.CommandError) as raised:
    commands.train(tmp_path / "missing.py", tmp_path)
  assert str(raised.value) == (
    f"toolrl-train: --config names a file; there is no file {tmp_path}"
    "/missing.py. (status 2)"
  )
  assert raised.value._render_traceback_() == [str(raised.value)]


def test_arguments_are_those_of_a_command_line():
  assert commands.arguments("a.py", "/w", {"sampler.max_steps": 2}) == [
    "--config=a.py",
    "--workdir=/w",
    "--config.sampler.max_steps=2",
  ]


def test_interrupt_lets_the_command_save(tmp_path, monkeypatch, capsys):
  (tmp_path / "a_run.py").write_text(_RUN)
  monkeypatch.setenv("PYTHONPATH", str(tmp_path))
  shown = ""

  def interrupt_when_it_runs():
    nonlocal shown
    for _ in range(1200):
      shown += capsys.readouterr().out
      if "5/9" in shown:
        break
      time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

  watcher = threading.Thread(target=interrupt_when_it_runs)
  watcher.start()
  with pytest.raises(KeyboardInterrupt):
    commands.run("a_run", [])
  watcher.join()
  shown += capsys.readouterr().out
  # Progress overwrites itself; lines stay.
  assert shown == (
    "12:00:00 resumed from step 4\n\rrows 50%\r12:00:00 step 5/9  reward 1.5 "
    "right 0.2  left 0:01:00\nsaved\n"
  )


def test_devices_are_those_of_another_process():
  found = commands.devices()
  assert found.platform == "cpu"
  assert found.num_chips >= 1
  assert sys.modules["toolrl_jax.notebook.commands"] is commands
