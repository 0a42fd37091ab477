"""JetStream's gRPC service over the online rollout.

From JetStream's own messages to the tokens of the driver that serves HTTP as
well: its `Decode` with text or with token ids, answered in chunks as they
come, and its `HealthCheck`. Ours differs from JetStream's servicer in this:

1. A prompt is what was sent: no beginning-of-sequence token, no padding to its
   buckets, no cut on the left. Text may spell special tokens, as the text of a
   rendered chat template does.
2. What cannot be served, and what fails, is a status; not an empty answer.
3. A client that goes away frees its row.

JetStream's request has neither temperature nor seed: the server's temperature
holds, and every request draws its own seed. It knows no templates.
"""

import logging as python_logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from absl import logging
from google.protobuf import message as protobuf_message

from toolrl_jax.model import text_stream
from toolrl_jax.rollout import api_key as api_key_lib
from toolrl_jax.rollout import jetstream_compat, online
from toolrl_jax.rollout.request import RolloutError

_pb2 = jetstream_compat.jetstream_pb2
_STATUS = {
  online.RequestError: grpc.StatusCode.INVALID_ARGUMENT,
  online.PromptTooLongError: grpc.StatusCode.INVALID_ARGUMENT,
  online.BusyError: grpc.StatusCode.RESOURCE_EXHAUSTED,
  online.DrainingError: grpc.StatusCode.UNAVAILABLE,
}


class DecodeService(jetstream_compat.orchestrator.LLMOrchestrator):  # type: ignore[name-defined]
  """Answers `Decode` and `HealthCheck`."""

  def __init__(
    self,
    rollout: online.OnlineRollout,
    *,
    encode: Callable[[str], Awaitable[Sequence[int]]],
    open_text: Callable[[], text_stream.TextStream],
    end_ids: Sequence[int],
    temperature: float,
    api_key: str = "",
  ):
    """Keeps what requests are answered with.

    Args:
      rollout: Admits requests and runs them.
      encode: Turns a prompt's text into tokens.
      open_text: Makes the text of an answer from its tokens.
      end_ids: Tokens that end an answer and are not sent.
      temperature: Sampling temperature of all answers.
      api_key: What clients send as `authorization: Bearer KEY`; empty: none.
    """
    super().__init__(driver=rollout.driver)
    self._rollout = rollout
    self._encode, self._open_text = encode, open_text
    self._end_ids = frozenset(end_ids)
    self._temperature, self._api_key = temperature, api_key

  async def Decode(  # noqa: N802 - the name in JetStream's protocol
    self, request: Any, context: Any = None
  ) -> AsyncIterator[Any]:
    """Yields an answer in chunks of text and tokens.

    Args:
      request: JetStream's DecodeRequest; `max_tokens` 0 is the server's limit.
      context: Of the call.
    """
    start, counted, status = time.monotonic(), [0, 0], "CANCELLED"
    try:
      async for response in self._answer(request, context, counted):
        yield response
      status = "OK"
    except (online.RequestError, RolloutError) as error:
      code = _STATUS.get(type(error), grpc.StatusCode.INTERNAL)
      status = code.name
      await context.abort(code, str(error))
    finally:
      logging.info(
        "gRPC Decode %s %d+%d tokens %.3f s",
        status, *counted, time.monotonic() - start,
      )  # fmt: skip

  async def _answer(
    self, request: Any, context: Any, counted: list[int]
  ) -> AsyncIterator[Any]:
    """Yields the chunks; counts prompt and answer tokens in `counted`."""
    await self._authorise(context)
    kind = request.WhichOneof("content")
    if kind is None:
      raise online.RequestError(
        "content must be text_content or token_content."
      )
    is_text = kind == "text_content"
    if is_text:
      prompt_ids = await self._encode(request.text_content.text)
    else:
      prompt_ids = list(request.token_content.token_ids)
    generation = self._rollout.start(
      prompt_ids,
      max_tokens=request.max_tokens or None,
      temperature=self._temperature,
      seed=secrets.randbits(63),
    )
    counted[0] = len(prompt_ids)
    text = self._open_text()
    try:
      async for tokens in generation.tokens():
        counted[1] += len(tokens.token_ids)
        # Client-side tokenization has no text, as in JetStream.
        new_text = (
          text.feed(tokens.token_ids, is_end=tokens.finish is not None)
          if is_text
          else ""
        )
        new_ids = [x for x in tokens.token_ids if x not in self._end_ids]
        if new_ids or new_text:
          yield _chunk(new_text, new_ids)
    finally:
      generation.cancel()

  async def _authorise(self, context: Any) -> None:
    if not self._api_key:
      return
    sent = dict(context.invocation_metadata() or ()).get("authorization", "")
    if not api_key_lib.is_right(str(sent).encode(), self._api_key):
      await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the API key is missing or wrong."
      )


def _chunk(text: str, token_ids: Sequence[int]) -> Any:
  content = _pb2.DecodeResponse.StreamContent
  sample = content.Sample(text=text, token_ids=token_ids)
  return _pb2.DecodeResponse(stream_content=content(samples=[sample]))


async def start(
  service: DecodeService, host: str, port: int
) -> tuple[Any, int]:
  """Starts JetStream's gRPC server on the running event loop.

  Args:
    service: What answers.
    host: Address to listen on.
    port: Port; 0 takes a free one.

  Returns:
    The server and its port.

  Raises:
    OSError: The port cannot be had.
  """
  # Else a second server would share the port in silence.
  server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
  python_logging.getLogger("grpc._cython.cygrpc").addFilter(_shortened)
  jetstream_compat.jetstream_pb2_grpc.add_OrchestratorServicer_to_server(
    service, server
  )
  address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
  try:
    bound = server.add_insecure_port(address)
  except RuntimeError as error:
    raise OSError(f"gRPC cannot listen on {address}") from error
  await server.start()
  return server, bound


def _shortened(record: python_logging.LogRecord) -> bool:
  """Keeps one line where what a client sent is no protocol buffer."""
  if record.exc_info and isinstance(
    record.exc_info[1], protobuf_message.DecodeError
  ):
    record.exc_info = None
  return True
