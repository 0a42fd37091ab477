"""Serves a model: OpenAI's chat completions over HTTP, JetStream's gRPC.

    toolrl-serve --config=configs/serve_tiny.py

From a checkpoint to a server on this machine: the rollout's engine and driver
answer requests as they arrive. It ends on SIGTERM or SIGINT: nothing new is
taken, what runs comes to its end, and the status is 0.
"""

import asyncio
import contextlib
import os
import pathlib
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import ml_collections
import uvicorn
from absl import logging

from toolrl_jax import command, command_line, configuration, hosts, parts
from toolrl_jax.rollout import decode_service, driver, online
from toolrl_jax.serving import address, app, chat

USAGE = """\
toolrl-serve: answers chat requests with a model, until it is told to stop.

  toolrl-serve --config=FILE [--config.section.field=VALUE ...] [FLAGS]

  --config        a recipe, for example configs/serve_tiny.py
  --config.       changes a field of the recipe: the model (model), how it is
                  asked (prompt), the longest prompt (data), the longest answer,
                  the rows and the sampling (rollout)
  --http          where OpenAI's clients connect, http://HOST:PORT/v1; by
                  default 127.0.0.1:8000, which only this machine can reach
  --grpc          where JetStream's clients connect, by default 127.0.0.1:9000;
                  empty: nowhere
  --model_name    what clients call the model; by default the name of its folder
  --api_key_file  a file with the key that clients must send; without it the
                  environment variable TOOLRL_API_KEY; neither: no key
  --max_waiting   answers that may wait while all rollout.slots are taken, by
                  default 64; more are refused with status 429
  --drain_secs    after SIGTERM, most seconds for what runs, by default 30

Examples:
  toolrl-serve --config=configs/serve_tiny.py
  toolrl-serve --config=configs/serve_tiny.py \\
    --config.model.path=/tmp/tiny/export --http=127.0.0.1:8080 --grpc=
  toolrl-serve --config=configs/toolrl_qwen25_3b.py --model_name=qwen-tools \\
    --config.model.path=/data/run/export --config.rollout.slots=32 \\
    --http=0.0.0.0:8000 --api_key_file=/etc/toolrl/key

Requests to try: docs/serving.md. SIGTERM and SIGINT let what runs come to its
end. Status: 0 told to stop; 2 a mistake in the command; 1 it cannot go on."""

_KEY_VARIABLE = "TOOLRL_API_KEY"
# After the last answer ended, for its last bytes to leave.
_CLOSE_SECS = 5
_WATCH_SECS = 1.0


class Options(NamedTuple):
  """Where and how to serve.

  Attributes:
    http: Where OpenAI's clients connect.
    grpc: Where JetStream's do; None for no gRPC.
    model_name: What clients call the model; empty: the name of its folder.
    api_key: What clients must send; empty: nothing.
    max_waiting: Answers that may wait for a row, at least 0.
    drain_secs: Most seconds for what runs when told to stop, at least 0.
  """

  http: address.Address
  grpc: address.Address | None
  model_name: str
  api_key: str
  max_waiting: int
  drain_secs: float


def run(argv: Sequence[str] | None = None) -> None:
  """Runs the command; a user's mistake ends with one line and status 2.

  Args:
    argv: Program name and arguments. None: those of the process.
  """
  arguments = list(sys.argv if argv is None else argv)
  if any(argument in ("--help", "-h") for argument in arguments[1:]):
    sys.stdout.write(f"{USAGE}\n")
    return
  command.run("toolrl-serve", lambda: _run(arguments))


def _run(argv: Sequence[str]) -> None:
  options, rest = parse(argv[1:])
  config, _ = command_line.load(
    [argv[0], *rest, "--workdir=."],
    USAGE,
    is_training=False,
    example="configs/serve_tiny.py",
  )
  main(config, options)


def parse(argv: Sequence[str]) -> tuple[Options, list[str]]:
  """Reads the flags that are not the configuration's.

  Args:
    argv: Arguments without the program's name.

  Returns:
    The options, and the arguments that are left.

  Raises:
    UsageError: A flag has a value that it cannot have.
  """
  parser = command_line.FlagParser(
    prog="toolrl-serve", allow_abbrev=False, add_help=False
  )
  parser.add_argument("--http", default="127.0.0.1:8000")
  parser.add_argument("--grpc", default="127.0.0.1:9000")
  parser.add_argument("--model_name", default="")
  parser.add_argument("--api_key_file", default="")
  parser.add_argument("--max_waiting", type=int, default=64)
  parser.add_argument("--drain_secs", type=float, default=30.0)
  arguments, rest = parser.parse_known_args(argv)
  for name in ("max_waiting", "drain_secs"):
    if not getattr(arguments, name) >= 0:
      raise configuration.UsageError(
        f"--{name} must be at least 0, got {getattr(arguments, name)}."
      )
  options = Options(
    http=_address("http", arguments.http),
    grpc=_address("grpc", arguments.grpc) if arguments.grpc else None,
    model_name=arguments.model_name,
    api_key=_api_key(arguments.api_key_file),
    max_waiting=arguments.max_waiting,
    drain_secs=arguments.drain_secs,
  )
  if options.http == options.grpc and options.http.port:
    raise configuration.UsageError(
      f"--http and --grpc must differ, both are {arguments.http}; name another "
      "port for one."
    )
  return options, rest


def _address(flag: str, text: str) -> address.Address:
  try:
    return address.parse(text)
  except ValueError as error:
    raise configuration.UsageError(f"--{flag} {error}") from error


def _api_key(path: str) -> str:
  """Returns the key of a file or of the environment."""
  if not path:
    return os.environ.get(_KEY_VARIABLE, "").strip()
  try:
    key = pathlib.Path(path).expanduser().read_text().strip()
  except (OSError, ValueError, RuntimeError) as error:
    raise configuration.UsageError(f"--api_key_file: {error}.") from error
  # What a header and gRPC's metadata can carry.
  if not key or not (key.isascii() and key.isprintable()):
    raise configuration.UsageError(
      f"--api_key_file: {path} must hold one line of printable ASCII."
    )
  return key


def main(config: ml_collections.ConfigDict, options: Options) -> None:
  """Serves until SIGTERM or SIGINT.

  Args:
    config: A checked configuration.
    options: Where and how.

  Raises:
    UsageError: The model cannot be loaded, or a port cannot be had.
    RolloutError: A thread of the driver failed.
  """
  # Until requests are taken there is nothing to finish.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
  with contextlib.ExitStack() as stack:
    # A mistake there shows before the model is loaded.
    listening = _bind(stack, options)
    parts.prepare_devices(config)
    if hosts.count() > 1:
      raise configuration.UsageError(
        f"toolrl-serve is one process, got {hosts.count()}; leave out "
        "config.mesh.coordinator."
      )
    policy = parts.policy(config)
    _check_positions(config, policy)
    engine = parts.rollout_engine(config, policy, policy.params)
    runner = driver.RolloutDriver(engine)
    stack.callback(runner.stop)
    rollout = online.OnlineRollout(
      engine,
      runner,
      prompt_buckets=_prompt_buckets(config),
      max_tokens=config.rollout.max_completion_tokens,
      max_waiting=options.max_waiting,
    )
    service = chat.ChatService(
      rollout, policy.tokenizer, manner(config), end_ids=policy.stop_ids
    )
    stack.callback(service.close)
    name = options.model_name or model_name(config)
    asyncio.run(_serve(service, name, options, listening))


def manner(config: ml_collections.ConfigDict) -> chat.Manner:
  """Returns how the model is asked."""
  return chat.Manner(
    template=config.prompt.template,
    thinking=config.prompt.thinking,
    system=config.prompt.system,
    completion=config.prompt.completion,
    temperature=config.rollout.temperature,
    top_p=config.rollout.top_p,
  )


def model_name(config: ml_collections.ConfigDict) -> str:
  """Returns the name of the checkpoint's folder, or of the run it is from."""
  origin = config.model.path.removeprefix("bundled:") or config.model.preset
  path = pathlib.Path(origin).absolute()
  return path.parent.name if path.name == "export" else path.name


def _prompt_buckets(config: ml_collections.ConfigDict) -> tuple[int, ...]:
  longest = config.data.max_prompt_tokens
  buckets = parts.prompt_buckets(config)
  return (*(bucket for bucket in buckets if bucket < longest), longest)


def _check_positions(
  config: ml_collections.ConfigDict, policy: parts.Policy
) -> None:
  prompt = config.data.max_prompt_tokens
  answer = config.rollout.max_completion_tokens
  if prompt + answer > policy.config.max_positions:
    raise configuration.UsageError(
      f"a prompt of {prompt} tokens and an answer of {answer} must fit the "
      f"checkpoint's {policy.config.max_positions} positions; lower "
      "config.data.max_prompt_tokens or config.rollout.max_completion_tokens."
    )
  if policy.tokenizer.chat_template is None:
    raise configuration.UsageError(
      "the checkpoint has no chat template; name the folder of an "
      "instruction-tuned one in config.model.tokenizer."
    )


def _bind(stack: contextlib.ExitStack, options: Options) -> socket.socket:
  """Takes the port of HTTP, and looks whether that of gRPC is free."""
  try:
    if options.grpc is not None:
      with address.bind(options.grpc):
        pass
    bound = stack.enter_context(address.bind(options.http))
  except ValueError as error:
    raise configuration.UsageError(str(error)) from error
  for place in filter(None, (options.http, options.grpc)):
    if not place.is_local and not options.api_key:
      logging.warning(
        "%s may be reached from outside, and no API key is set; see "
        "--api_key_file.", place.host,
      )  # fmt: skip
  return bound


class _Server(uvicorn.Server):
  """A server whose signals are handled outside it."""

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    yield


async def _serve(
  service: chat.ChatService,
  name: str,
  options: Options,
  listening: socket.socket,
) -> None:
  """Compiles, serves, and ends when told to."""
  rollout = service.rollout
  told, again = asyncio.Event(), asyncio.Event()

  def tell() -> None:
    (again if told.is_set() else told).set()

  loop = asyncio.get_running_loop()
  for number in (signal.SIGTERM, signal.SIGINT):
    loop.add_signal_handler(number, tell)
  await _compile(rollout, told)
  if told.is_set():
    return
  server = _Server(
    uvicorn.Config(
      app.make(service, name=name, api_key=options.api_key),
      lifespan="off", ws="none", log_config=None, log_level="warning", access_log=False,
      server_header=False, timeout_graceful_shutdown=_CLOSE_SECS,
    )
  )  # fmt: skip
  serving = asyncio.create_task(server.serve(sockets=[listening]))
  grpc_server, where = await _start_grpc(service, options)
  host, port = listening.getsockname()[:2]
  logging.info("serves %s on http://%s:%d/v1%s", name, host, port, where)
  watching = asyncio.create_task(_failed(rollout))
  waiting = asyncio.create_task(told.wait())
  await asyncio.wait(
    {serving, watching, waiting}, return_when=asyncio.FIRST_COMPLETED
  )
  if not watching.done() and not serving.done():
    await _drain(rollout, options.drain_secs, again)
  for task in (watching, waiting):
    task.cancel()
  # What has not ended fails now, so that its clients hear of it.
  failure = rollout.driver.failure
  await asyncio.to_thread(rollout.driver.stop)
  server.should_exit = True
  if grpc_server is not None:
    await grpc_server.stop(_CLOSE_SECS)
  await serving
  if failure is not None:
    raise online.RolloutError(f"the rollout driver failed: {failure}")
  logging.info("stopped")


async def _compile(rollout: online.OnlineRollout, told: asyncio.Event) -> None:
  """Runs a prompt of each length, so that no client waits for the compiler."""
  for size in rollout.prompt_buckets:
    if told.is_set():
      return
    logging.info("compiles for prompts of up to %d tokens", size)
    generation = rollout.start([0] * size, max_tokens=1)
    async for _ in generation.tokens():
      pass


async def _start_grpc(service: chat.ChatService, options: Options):
  """Starts JetStream's server; returns it with a text that says where."""
  if options.grpc is None:
    return None, ""
  answers = decode_service.DecodeService(
    service.rollout,
    encode=service.encode_text,
    open_text=service.open_text,
    end_ids=service.end_ids,
    temperature=service.manner.temperature,
    api_key=options.api_key,
  )
  try:
    server, port = await decode_service.start(answers, *options.grpc)
  except OSError as error:
    raise configuration.UsageError(f"--grpc: {error}.") from error
  return server, f" and gRPC {options.grpc[0]}:{port}"


async def _failed(rollout: online.OnlineRollout) -> None:
  """Returns when a thread of the driver has failed."""
  while rollout.driver.failure is None:
    await asyncio.sleep(_WATCH_SECS)


async def _drain(
  rollout: online.OnlineRollout, secs: float, again: asyncio.Event
) -> None:
  """Lets what runs come to its end, unless it is told to stop again."""
  logging.info(
    "told to stop; %d answers run or wait, at most %g s for them",
    rollout.num_open, secs,
  )  # fmt: skip
  draining = asyncio.create_task(rollout.drain(secs))
  hurried = asyncio.create_task(again.wait())
  await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
  for task in (draining, hurried):
    task.cancel()
  if rollout.num_open:
    logging.warning("%d answers did not end in time", rollout.num_open)


if __name__ == "__main__":
  run()
