"""The body of a request that does not come to its end."""

import asyncio

import pytest
from starlette.requests import Request

from toolrl_jax.serving import api_error, app


def test_a_body_that_does_not_end_is_refused_in_time(monkeypatch):
  monkeypatch.setattr(app, "_MAX_BODY_SECS", 0.05)
  told = [{"type": "http.request", "body": b"{", "more_body": True}]

  async def receive():
    if told:
      return told.pop()
    await asyncio.sleep(60)
    return {"type": "http.disconnect"}

  request = Request({"type": "http", "method": "POST", "headers": []}, receive)
  with pytest.raises(api_error.ApiError, match="within 0.05 s") as caught:
    asyncio.run(app._body(request))
  assert caught.value.status == 408
