"""A checkout with the launch scripts, and a stand-in gcloud beside them.

ssh of the stand-in runs what it is given with `bash -c`, once a worker, so the
quoting, the worker's part and the statuses are the real ones. Only uv and
hostname are replaced there.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

_HERE = pathlib.Path(__file__).resolve().parent
_LAUNCH = _HERE.parents[1] / "launch"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> pathlib.Path:
  """A git checkout with our scripts and files of every kind."""
  root = tmp_path_factory.mktemp("checkout")
  shutil.copytree(_LAUNCH, root / "launch")
  for name in ["tracked.py", "gone.py", "two words.txt", "secret.txt"]:
    (root / name).write_text(name)
  (root / ".gitignore").write_text("secret.txt\ndist/\n")
  git = ["git", "-C", str(root)]
  subprocess.run([*git, "init", "--quiet"], check=True)
  subprocess.run([*git, "add", "--all"], check=True)
  (root / "gone.py").unlink()
  (root / "untracked.py").write_text("untracked")
  return root


class _Cloud:
  """The stand-in gcloud's folder, and the scripts that call it."""

  def __init__(self, checkout, folder):
    self.checkout = checkout
    self.folder = folder
    self.processes = []
    self.programs = folder / "bin"
    self.programs.mkdir()
    self.program("hostname", 'echo "t1v-n-0-w-$PLAY_WORKER"')
    self.program("uv", 'echo "uv $*" >>"$HOME/uv.txt"')
    self.play(workers=1)
    self.environment = os.environ | {
      # The stand-in's Python without a detour.
      "PATH": f"{_HERE}:{os.path.dirname(sys.executable)}:/usr/bin:/bin",
      "GCLOUD_PLAY": str(folder),
    }

  def program(self, name, body):
    """Puts a program into the workers' PATH."""
    path = self.programs / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)

  def replace_sleep(self, body):
    """Puts another `sleep` in front of the scripts' own."""
    programs = self.folder / "here"
    programs.mkdir()
    path = programs / "sleep"
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    found = f"{programs}:{self.environment['PATH']}"
    self.environment = self.environment | {"PATH": found}

  def play(self, workers=1, **lists):
    play = {"workers": workers} | lists
    (self.folder / "play.json").write_text(json.dumps(play))

  def given(self, node="READY", queue=""):
    """A slice that is there already."""
    state = {"node": node, "queue": queue, "type": "v5litepod-16"}
    (self.folder / "state.json").write_text(json.dumps(state))

  def start(self, script, *arguments) -> subprocess.Popen:
    process = subprocess.Popen(
      [str(self.checkout / "launch" / script), *arguments],
      env=self.environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    self.processes.append(process)
    return process

  def run(self, script, *arguments, status=0) -> tuple[str, str]:
    """Runs a script to its end; its output and its messages."""
    process = self.start(script, *arguments)
    said = process.communicate(timeout=60)
    assert process.returncode == status, said
    return said

  def complaint(self, script, *arguments, status=2) -> str:
    out, said = self.run(script, *arguments, status=status)
    assert out == ""
    assert said.startswith(f"{script}: ")
    assert said.count("\n") == 1, said
    return said

  def calls(self) -> list[str]:
    """The calls so far: what of the two kinds, and the verb."""
    path = self.folder / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [" ".join(json.loads(line)[2:4]) for line in lines]

  def count(self, call) -> int:
    return self.calls().count(call)

  def last(self, call) -> list[str]:
    lines = (self.folder / "calls.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [a for a in found if " ".join(a[2:4]) == call][-1]

  def worker(self, index) -> pathlib.Path:
    return self.folder / f"worker_{index}"

  def until(self, is_so) -> None:
    """Waits until something holds."""
    for _ in range(1200):
      if is_so():
        return
      time.sleep(0.05)
    raise TimeoutError

  def until_followed(self, num_times) -> None:
    """Waits until scripts have waited for the command this many times."""
    calls = self.folder / "calls.jsonl"
    word = "toolrl_worker.sh wait"
    self.until(
      lambda: calls.exists() and calls.read_text().count(word) >= num_times
    )

  def until_file(self, *names) -> None:
    self.until(lambda: all((self.folder / name).exists() for name in names))


@pytest.fixture
def cloud(checkout, tmp_path):
  cloud = _Cloud(checkout, tmp_path)
  yield cloud
  for process in cloud.processes:
    if process.poll() is None:
      process.terminate()
  for path in tmp_path.glob("worker_*/toolrl_runs/*/pid"):
    if not (path.parent / "status").exists():
      try:
        os.killpg(int(path.read_text()), signal.SIGKILL)
      except ProcessLookupError:
        continue
