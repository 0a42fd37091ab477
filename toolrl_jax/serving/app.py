"""The HTTP service: OpenAI's models and chat completions over one model.

From HTTP to chats and back: bodies and their size, the key, the form of
answers, streams of events, errors, and one line of log a request, which never
holds text. What a client sends decides nothing but its own answer.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from absl import logging
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolrl_jax.rollout import api_key as api_key_lib
from toolrl_jax.serving import chat_documents, chat_request
from toolrl_jax.serving.api_error import ApiError
from toolrl_jax.serving.chat import Chat, ChatService, Choice

_MAX_BODY_BYTES = 2 * 2**20
# A longer body is read to its end and thrown away, so that the client is
# there to read the answer; but not without bound.
_MAX_READ_BYTES = 64 * 2**20
_MAX_BODY_SECS = 30.0
_CLIENT_LEFT = 499
_USAGE = "toolrl.usage"


def make(service: ChatService, *, name: str, api_key: str = "") -> ASGIApp:
  """Returns the application.

  Args:
    service: Answers chats.
    name: The model's name in requests and answers.
    api_key: What clients send as `Authorization: Bearer KEY`; empty: none.

  Returns:
    An ASGI application.
  """
  routes = _Routes(service, name)
  inner = Starlette(
    routes=[
      Route("/health", routes.health, methods=["GET"]),
      Route("/v1/models", routes.models, methods=["GET"]),
      Route("/v1/models/{name:path}", routes.model, methods=["GET"]),
      Route("/v1/chat/completions", routes.chat, methods=["POST"]),
    ],
    exception_handlers={
      ApiError: _on_api_error,
      HTTPException: _on_http_error,
      Exception: _on_failure,
    },
  )
  return _Door(inner, api_key)


class _Door:
  """Checks the key, and logs every request once it is over."""

  def __init__(self, app: ASGIApp, key: str):
    self._app = app
    self._key = key

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
      return
    start, status = time.monotonic(), _CLIENT_LEFT

    async def sending(message: Message) -> None:
      nonlocal status
      if message["type"] == "http.response.start":
        status = message["status"]
      await send(message)

    try:
      if self._is_allowed(scope):
        await self._app(scope, receive, sending)
      else:
        error = ApiError(
          401, "the API key is missing or wrong.", code="invalid_api_key"
        )
        await _respond(error)(scope, receive, sending)
    except ClientDisconnect:
      status = _CLIENT_LEFT
    except Exception as error:  # noqa: BLE001 - one request, not the server
      # The traceback may quote the request: for who debugs only.
      logging.debug("failed", exc_info=True)
      logging.error("a request failed: %s", type(error).__name__)
    finally:
      usage: tuple[int, int] = scope.get(_USAGE, lambda: (0, 0))()
      logging.info(
        "%s %s %d %d+%d tokens %.3f s",
        scope["method"][:10], ascii(scope["path"][:100])[1:-1],
        scope.get("toolrl.status", status), *usage, time.monotonic() - start,
      )  # fmt: skip

  def _is_allowed(self, scope: Scope) -> bool:
    if not self._key or not scope["path"].startswith("/v1"):
      return True
    sent = dict(scope["headers"]).get(b"authorization", b"")
    return api_key_lib.is_right(sent, self._key)


class _Routes:
  """What the paths do."""

  def __init__(self, service: ChatService, name: str):
    self._service, self._name = service, name
    self._created = int(time.time())

  async def health(self, request: Request) -> Response:
    del request
    rollout = self._service.rollout
    is_well = rollout.driver.failure is None and not rollout.is_draining
    if rollout.driver.failure is not None:
      status = "failed"
    else:
      status = "draining" if rollout.is_draining else "ok"
    document = {"status": status, "open": rollout.num_open}
    return _json(document, status=200 if is_well else 503)

  async def models(self, request: Request) -> Response:
    del request
    return _json({"object": "list", "data": [self._model()]})

  async def model(self, request: Request) -> Response:
    self._check_name(request.path_params["name"])
    return _json(self._model())

  async def chat(self, request: Request) -> Response:
    # A long one takes half a second, in which others are answered.
    asked = await asyncio.to_thread(chat_request.read, await _body(request))
    self._check_name(asked.model)
    chat = await self._service.open(asked)
    request.scope[_USAGE] = lambda: chat.usage
    documents = chat_documents.ChatDocuments(self._name, chat)
    if asked.stream:
      options = asked.stream_options
      is_counted = options is not None and options.include_usage
      return _Events(
        chat, documents.events(is_usage_wanted=is_counted), request
      )
    return _json(documents.whole(await _whole(request, chat)))

  def _check_name(self, name: str) -> None:
    if name != self._name:
      raise ApiError(
        404,
        f"there is no model of this name; the model here is {self._name!r}.",
        param="model",
        code="model_not_found",
      )

  def _model(self) -> dict[str, Any]:
    return {
      "id": self._name,
      "object": "model",
      "created": self._created,
      "owned_by": "toolrl_jax",
    }


class _Events(StreamingResponse):
  """A stream of server-sent events that frees its rows however it ends."""

  def __init__(
    self,
    chat: Chat,
    events: AsyncIterator[Mapping[str, Any] | str],
    request: Request,
  ):
    super().__init__(
      _lines(events),
      media_type="text/event-stream",
      headers={"Cache-Control": "no-cache"},
    )
    self._chat, self._request = chat, request

  async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
    is_whole = False

    async def sending(message: Message) -> None:
      nonlocal is_whole
      await send(message)
      is_whole = is_whole or not message.get("more_body", True)

    try:
      await super().__call__(scope, receive, sending)
    finally:
      self._chat.cancel()
      if not is_whole:
        scope["toolrl.status"] = _CLIENT_LEFT


async def _lines(
  events: AsyncIterator[Mapping[str, Any] | str],
) -> AsyncIterator[bytes]:
  async for event in events:
    text = event if isinstance(event, str) else json.dumps(event)
    yield f"data: {text}\n\n".encode("ascii")


async def _whole(request: Request, chat: Chat) -> list[Choice]:
  """Returns the whole answer, unless its client goes away before.

  Raises:
    ApiError: The engine failed.
    ClientDisconnect: The client went away.
  """
  answering = asyncio.create_task(chat.whole())
  leaving = asyncio.create_task(_left(request))
  try:
    await asyncio.wait(
      {answering, leaving}, return_when=asyncio.FIRST_COMPLETED
    )
    if not answering.done():
      raise ClientDisconnect
    return answering.result()
  finally:
    chat.cancel()
    answering.cancel()
    leaving.cancel()


async def _left(request: Request) -> None:
  """Returns when the client has gone away."""
  while (await request.receive())["type"] != "http.disconnect":
    pass


async def _body(request: Request) -> bytes:
  """Reads a body.

  Raises:
    ApiError: It is too large, or does not come to its end.
  """
  body, num_bytes = bytearray(), 0
  try:
    async with asyncio.timeout(_MAX_BODY_SECS):
      async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes <= _MAX_BODY_BYTES:
          body += chunk
        elif num_bytes > _MAX_READ_BYTES:
          break
  except TimeoutError as error:
    raise ApiError(
      408, f"the body must come within {_MAX_BODY_SECS:g} s."
    ) from error
  if num_bytes > _MAX_BODY_BYTES:
    raise ApiError(413, f"the body must have at most {_MAX_BODY_BYTES} bytes.")
  return bytes(body)


def _json(
  document: Mapping[str, Any],
  *,
  status: int = 200,
  headers: Mapping[str, str] | None = None,
) -> Response:
  # ASCII: no proxy and no reader of lines can cut a character.
  return Response(
    json.dumps(document), status, headers, media_type="application/json"
  )


def _respond(error: ApiError) -> Response:
  return _json(error.document(), status=error.status, headers=error.headers())


async def _on_api_error(request: Request, error: Exception) -> Response:
  del request
  assert isinstance(error, ApiError)
  return _respond(error)


async def _on_failure(request: Request, error: Exception) -> Response:
  """Says no more than that: what failed may quote somebody's request."""
  del request, error
  return _respond(ApiError(500, "the server failed in this request."))


async def _on_http_error(request: Request, error: Exception) -> Response:
  """Gives the errors of routing the same shape."""
  assert isinstance(error, HTTPException)
  what = {404: "there is nothing at this path.", 405: "wrong method."}
  response = _respond(
    ApiError(error.status_code, what.get(error.status_code, error.detail))
  )
  for name, value in (error.headers or {}).items():
    response.headers[name] = value
  return response
