"""The commands for a slice in README.md and docs/, run as they are written."""

import pathlib
import re
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _blocks(page, word) -> list[str]:
  """Returns the indented blocks of a page that begin with a word."""
  text = (_ROOT / page).read_text()
  blocks = re.findall(r"(?:^ {4}.*\n?|^\n(?= {4}))+", text, re.MULTILINE)
  blocks = [re.sub(r"^ {4}", "", block, flags=re.M) for block in blocks]
  return [block for block in blocks if block.lstrip().startswith(word)]


@pytest.mark.parametrize(
  ("page", "word"),
  [
    ("README.md", "launch/supervise.sh"),
    ("docs/tpu.md", "launch/supervise.sh"),
    ("docs/tpu.md", "launch/create_tpu.sh"),
  ],
)
def test_commands_run_as_they_are_written(cloud, page, word):
  (block,) = _blocks(page, word)
  cloud.play(workers=2, queue=["WAITING_FOR_RESOURCES", "ACTIVE"])
  cloud.program("gcloud", "exit 0")  # Of the workers: copies from the bucket.
  cloud.program("toolrl-train", 'printf "%s\\n" trains "$@"')
  # Waits between two looks are cut short.
  cloud.replace_sleep("exec /bin/sleep 0.1")
  ended = subprocess.run(
    ["bash", "-e", "-c", block],
    cwd=cloud.checkout,
    env=cloud.environment,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert ended.returncode == 0, ended.stderr
  assert "trains\n" in ended.stdout
  assert "--config.mesh.coordinator=auto\n" in ended.stdout
  assert re.search(r"--workdir=gs://MY-BUCKET/runs/\w+\n", ended.stdout)
  # Nothing is left that costs money.
  assert cloud.calls()[-1].endswith(("delete", "describe"))
