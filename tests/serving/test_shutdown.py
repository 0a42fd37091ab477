"""How a server with a key ends."""

import concurrent.futures
import signal
import time

import grpc
import openai
import pytest

from toolrl_jax.rollout import jetstream_compat

_pb2 = jetstream_compat.jetstream_pb2


@pytest.fixture(scope="module")
def locked(start_server):
  """A server with a key from the environment."""
  return start_server(
    "--drain_secs=200", environment={"TOOLRL_API_KEY": "sesame"}
  )


def test_a_wrong_key_is_401_and_health_needs_none(locked):
  for key in ("none", "sesame2", "Sesame"):
    with pytest.raises(openai.AuthenticationError) as caught:
      locked.client(key).models.list()
    assert caught.value.response.headers["www-authenticate"] == "Bearer"
    assert "key" in caught.value.message
  assert locked.client("sesame").models.list().data[0].id == "tiny"
  # The name of the scheme is not case-sensitive (RFC 9110, section 11.1).
  lower = locked.client(default_headers={"Authorization": "bearer sesame"})
  assert lower.models.list().data[0].id == "tiny"


def test_grpc_needs_the_key_too(locked):
  request = _pb2.DecodeRequest(
    token_content=_pb2.DecodeRequest.TokenContent(token_ids=[5]), max_tokens=1
  )
  with grpc.insecure_channel(locked.grpc) as channel:
    stub = jetstream_compat.jetstream_pb2_grpc.OrchestratorStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
      list(stub.Decode(request, timeout=60))
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    key = (("authorization", "bearer sesame"),)
    list(stub.Decode(request, metadata=key, timeout=60))


def test_sigterm_finishes_what_runs_refuses_the_rest_and_exits_0(locked):
  client = locked.client("sesame")
  asked = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "tell me a story"}],
    "temperature": 2,
    "seed": 1,
    "max_tokens": 250,
  }
  expected = client.chat.completions.create(**asked)
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    stream = client.chat.completions.create(**asked, stream=True)
    next(stream)
    whole = pool.submit(client.chat.completions.create, **asked)
    while locked.health()["open"] < 2:
      time.sleep(0.02)
    locked.process.send_signal(signal.SIGTERM)
    locked.wait_for("told to stop; 2 answers run or wait")
    with pytest.raises(openai.InternalServerError) as caught:
      client.chat.completions.create(**asked)
    assert caught.value.status_code == 503
    assert "retry-after" in caught.value.response.headers
    content = expected.choices[0].message.content
    assert whole.result().choices[0].message.content == content
    deltas = [chunk.choices[0].delta.content or "" for chunk in stream]
  assert "".join(deltas) == (content or "")
  assert locked.process.wait(200) == 0
  assert locked.lines[-1].endswith("stopped")


def test_a_second_signal_ends_what_runs_with_a_reason(start_server):
  server = start_server()
  client = server.client()
  asked = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "tell me a story"}],
    "temperature": 2,
    "seed": 1,
  }
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    whole = pool.submit(client.chat.completions.create, **asked)
    while server.health()["open"] < 1:
      time.sleep(0.02)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("told to stop; 1 answers run or wait")
    server.process.send_signal(signal.SIGINT)
    with pytest.raises(openai.InternalServerError) as caught:
      whole.result()
  assert "driver was stopped" in caught.value.message
  assert server.process.wait(60) == 0
