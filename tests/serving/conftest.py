"""The real server as a process of its own, with the bundled tiny model."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import openai
import pytest

from toolrl_jax.data import synthetic
from toolrl_jax.model import tokenizer

_SERVES = re.compile(r"serves (\S+) on (http://\S+:\d+/v1) and gRPC (\S+)")
# Long answers, so that there is something to interrupt.
_FIELDS = (
  "rollout.max_completion_tokens=1024",
  "rollout.completion_buckets=(1024,)",
  # Also what gRPC samples with, which cannot ask for anything else.
  "rollout.temperature=0",
  "data.prompt_buckets=(512,)",
)


class Server:
  """A running server.

  Attributes:
    url: Of the API.
    grpc: Address of gRPC.
    model: Name of the model.
    lines: What it has logged.
  """

  def __init__(self, root_dir, *flags, environment=None):
    fields = [f"--config.{field}" for field in _FIELDS]
    self.process = subprocess.Popen(
      [
        sys.executable, "-m", "toolrl_jax.serve",
        f"--config={root_dir / 'configs/serve_tiny.py'}", *fields,
        "--http=127.0.0.1:0", "--grpc=127.0.0.1:0", *flags,
      ],
      stderr=subprocess.PIPE, text=True, cwd=root_dir,
      env={**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})},
    )  # fmt: skip
    self.lines = []
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()
    found = self.wait_for(_SERVES, secs=300)
    self.model, self.url, self.grpc = found.groups()

  def _read(self):
    for line in self.process.stderr:
      self.lines.append(line.rstrip("\n"))

  def wait_for(self, pattern, secs=60):
    """Returns the match of the first line that has one."""
    end = time.monotonic() + secs
    while time.monotonic() < end:
      for line in [*self.lines]:
        if match := re.search(pattern, line):
          return match
      if self.process.poll() is not None and not self._reader.is_alive():
        break
      time.sleep(0.05)
    raise AssertionError(f"no {pattern!r} in {self.lines}")

  def client(self, api_key="none", **options):
    """Returns an official client that does not try again by itself."""
    return openai.OpenAI(
      base_url=self.url, api_key=api_key, max_retries=0, timeout=300, **options
    )

  def health(self):
    """Returns what /health says, which needs no key."""
    url = self.url.removesuffix("/v1") + "/health"
    with urllib.request.urlopen(url, timeout=300) as response:
      return json.load(response)

  def end(self):
    """Ends it, whatever it does."""
    if self.process.poll() is None:
      self.process.send_signal(signal.SIGKILL)
    self.process.wait(60)
    self._reader.join(10)


@pytest.fixture(scope="session")
def start_server(root_dir, tmp_path_factory):
  """Starts servers that share what they compile."""
  cache = {
    "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR")
    or str(tmp_path_factory.mktemp("compiled")),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  started = []

  def start(*flags, environment=None):
    environment = {**cache, **(environment or {})}
    started.append(Server(root_dir, *flags, environment=environment))
    return started[-1]

  yield start
  for server in started:
    server.end()


@pytest.fixture(scope="session")
def server(start_server):
  """A server without a key, eight rows, and two places to wait."""
  return start_server("--max_waiting=2")


@pytest.fixture(scope="session")
def client(server):
  return server.client()


@pytest.fixture(scope="session")
def tiny_tokenizer():
  return tokenizer.load("bundled:tiny")


@pytest.fixture(scope="session")
def rows():
  """Generated rows that the model has not been trained on."""
  return synthetic.generate(24, split="eval", seed=3)


@pytest.fixture(scope="session")
def asking(server):
  """Makes the arguments of a request out of a row."""

  def make(row, **options):
    return {
      "model": server.model,
      "messages": [*row.messages],
      "tools": [{"type": "function", "function": tool} for tool in row.tools],
      "temperature": 0,
      **options,
    }

  return make


@pytest.fixture(scope="session")
def endless(server):
  """Makes a request whose answers are long: no tools, and hot sampling."""

  def make(**options):
    return {
      "model": server.model,
      "messages": [{"role": "user", "content": "tell me a story"}],
      "temperature": 2,
      "seed": 1,
      **options,
    }

  return make
