"""The command toolrl-serve: its flags, and how it begins and ends."""

import signal
import socket

import pytest

from toolrl_jax import configuration, serve

_CONFIG = "configs/serve_tiny.py"


@pytest.fixture
def fails(root_dir, capsys):
  """Runs the command and returns its one line, which has status 2."""
  before = signal.getsignal(signal.SIGTERM)

  def run(*flags, config=_CONFIG):
    with pytest.raises(SystemExit) as caught:
      serve.run(["toolrl-serve", f"--config={root_dir / config}", *flags])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith("toolrl-serve: ")
    return line

  yield run
  signal.signal(signal.SIGTERM, before)


def test_help_names_every_flag(capsys):
  serve.run(["toolrl-serve", "--help"])
  shown = capsys.readouterr().out
  for name in (
    "config", "http", "grpc", "model_name", "api_key_file", "max_waiting",
    "drain_secs",
  ):  # fmt: skip
    assert f"--{name}" in shown


def test_parse_gives_defaults_on_this_machine_only(monkeypatch):
  monkeypatch.delenv("TOOLRL_API_KEY", raising=False)
  options, rest = serve.parse(["--config=a.py", "--config.seed=3"])
  assert options == (
    ("127.0.0.1", 8000), ("127.0.0.1", 9000), "", "", 64, 30.0,
  )  # fmt: skip
  assert rest == ["--config=a.py", "--config.seed=3"]


def test_parse_reads_addresses_and_keys(monkeypatch, tmp_path):
  monkeypatch.setenv("TOOLRL_API_KEY", " of-environment\n")
  options, _ = serve.parse(["--http=[::1]:80", "--grpc="])
  assert options.http == ("::1", 80)
  assert options.grpc is None
  assert options.api_key == "of-environment"
  (tmp_path / "key").write_text("of-file\n")
  options, _ = serve.parse([f"--api_key_file={tmp_path / 'key'}"])
  assert options.api_key == "of-file"


@pytest.mark.parametrize(
  "flag",
  [
    "--http=8000", "--http=:8000", "--http=host:http", "--http=a:99999",
    "--grpc=9000", "--max_waiting=-1", "--max_waiting=few", "--drain_secs=nan",
    "--api_key_file=/there/is/no/such/file", "--http=127.0.0.1:80:80",
    "--http=a b:80", "--http=a:\u0661\u0662", "--grpc=127.0.0.1:8000",
    "--api_key_file=~no_such_user/key",
  ],
)  # fmt: skip
def test_parse_refuses_in_one_line_that_names_the_flag(flag):
  with pytest.raises(configuration.UsageError) as caught:
    serve.parse([flag])
  assert flag.partition("=")[0].removeprefix("--") in str(caught.value)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n", "a\nb", "ключ"])
def test_parse_refuses_a_key_that_no_header_carries(tmp_path, text):
  path = tmp_path / "key"
  path.write_text(text)
  with pytest.raises(configuration.UsageError, match="printable ASCII"):
    serve.parse([f"--api_key_file={path}"])


@pytest.mark.parametrize("flag", ["http", "grpc"])
def test_a_port_in_use_is_one_line_before_the_model_is_loaded(fails, flag):
  with socket.create_server(("127.0.0.1", 0)) as other:
    port = other.getsockname()[1]
    other_flag = "--grpc=" if flag == "http" else "--http=127.0.0.1:0"
    line = fails(
      f"--{flag}=127.0.0.1:{port}", other_flag,
      "--config.model.path=/there/is/no/such/checkpoint",
    )  # fmt: skip
  assert f": 127.0.0.1:{port} cannot be had: Address already in use" in line


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--config.model.path=/no/such/checkpoint"], "/no/such/checkpoint"),
    (
      [
        "--config.data.max_prompt_tokens=2048",
        "--config.data.prompt_buckets=()",
      ],
      "2048 positions",
    ),
    (["--config.rollout.slot=3"], "did you mean config.rollout.slots"),
    (["--http=240.0.0.1:1"], "cannot be had"),
  ],
)
def test_mistakes_are_one_line_with_status_2(fails, flags, message):
  assert message in fails("--http=127.0.0.1:0", "--grpc=", *flags)


@pytest.mark.parametrize(
  ("path", "name"),
  [
    ("bundled:tiny", "tiny"), ("/runs/tuned/export", "tuned"),
    ("/models/Qwen2.5-3B-Instruct/", "Qwen2.5-3B-Instruct"),
  ],
)  # fmt: skip
def test_model_name_is_that_of_the_folder_or_of_the_run(path, name):
  from configs import serve_tiny

  config = serve_tiny.get_config()
  config.model.path = path
  assert serve.model_name(config) == name
