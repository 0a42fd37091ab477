"""JetStream's gRPC service of the real server."""

import grpc
import pytest

from toolrl_jax.data import prompt
from toolrl_jax.rollout import jetstream_compat

_pb2 = jetstream_compat.jetstream_pb2
_CONTENT = _pb2.DecodeRequest


@pytest.fixture(scope="module")
def stub(server):
  with grpc.insecure_channel(server.grpc) as channel:
    yield jetstream_compat.jetstream_pb2_grpc.OrchestratorStub(channel)


def _decode(stub, **fields):
  samples = [
    response.stream_content.samples[0]
    for response in stub.Decode(_pb2.DecodeRequest(**fields), timeout=120)
  ]
  ids = [token for sample in samples for token in sample.token_ids]
  return "".join(sample.text for sample in samples), ids


def _text(text):
  return _CONTENT.TextContent(text=text)


def _tokens(ids):
  return _CONTENT.TokenContent(token_ids=ids)


def test_text_and_tokens_give_what_http_gives(
  stub, client, rows, asking, tiny_tokenizer
):
  row = next(row for row in rows if row.gold.response)
  prompt_ids = prompt.encode(row, tiny_tokenizer, template="native")
  rendered = prompt.render(row, tiny_tokenizer, template="native")
  text, ids = _decode(stub, text_content=_text(rendered))
  no_text, same_ids = _decode(stub, token_content=_tokens(prompt_ids))
  assert ids == same_ids and no_text == ""
  assert text == tiny_tokenizer.decode(ids)
  answer = client.chat.completions.create(**asking(row))
  assert answer.choices[0].message.content in text
  # HTTP counts the end token, which gRPC does not send.
  assert answer.usage.completion_tokens == len(ids) + 1


def test_max_tokens_ends_the_answer(stub):
  _, ids = _decode(stub, token_content=_tokens([5, 6, 7]), max_tokens=3)
  assert len(ids) <= 3


@pytest.mark.parametrize(
  ("fields", "code"),
  [
    ({}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"text_content": _text("")}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"token_content": _tokens([-1])}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"token_content": _tokens([2000])}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"token_content": _tokens([5] * 600)}, grpc.StatusCode.INVALID_ARGUMENT),
    (
      {"token_content": _tokens([5]), "max_tokens": 2000},
      grpc.StatusCode.INVALID_ARGUMENT,
    ),
    (
      {"token_content": _tokens([5]), "max_tokens": -1},
      grpc.StatusCode.INVALID_ARGUMENT,
    ),
  ],
)
def test_what_cannot_be_served_is_a_status_with_a_reason(stub, fields, code):
  with pytest.raises(grpc.RpcError) as caught:
    _decode(stub, **fields)
  assert caught.value.code() == code
  assert caught.value.details()


def test_health_check_says_that_it_lives(stub):
  assert stub.HealthCheck(_pb2.HealthCheckRequest(), timeout=60).is_live


def test_a_call_that_is_cancelled_frees_its_row(stub, server):
  call = stub.Decode(
    _pb2.DecodeRequest(token_content=_tokens([9, 9, 9])), timeout=120
  )
  next(call)
  call.cancel()
  for _ in range(600):
    if not server.health()["open"]:
      return
  raise AssertionError("its row is still taken")


def test_what_is_no_message_is_one_line_of_log(server):
  with grpc.insecure_channel(server.grpc) as channel:
    decode = channel.unary_stream(
      "/jetstream_proto.Orchestrator/Decode",
      request_serializer=bytes,
      response_deserializer=bytes,
    )
    with pytest.raises(grpc.RpcError) as caught:
      list(decode(b"\xff\xff\xff", timeout=60))
  assert caught.value.code() == grpc.StatusCode.UNKNOWN
  server.wait_for(r"Unexpected \[DecodeError\]")
  assert not [line for line in server.lines if "Traceback" in line]
