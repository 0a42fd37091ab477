"""A web service that takes JSON and gives JSON.

From a document to the reply, with a limit on time and size. It knows neither
what the service does nor where its key comes from, beyond the name of an
environment variable.
"""

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

_MAX_REPLY_BYTES = 4_000_000


class Service:
  """A JSON web service: one address, an optional key, a time limit.

  Redirections are not followed, since they would carry the key elsewhere.
  """

  def __init__(self, url: str, *, timeout_secs: float = 30.0):
    """Checks the address; nothing is sent.

    Args:
      url: Address, http or https.
      timeout_secs: Longest wait for the service.

    Raises:
      ValueError: The address is of another kind.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
      raise ValueError(
        f"a service address must begin with http:// or https://, got {url!r};"
        " give the address of the service."
      )
    self._url, self._timeout_secs = url, timeout_secs
    self._opener = urllib.request.build_opener(_NoRedirect)

  def post(self, document: Any, headers: Mapping[str, str]) -> Any:
    """Posts a JSON document.

    Args:
      document: What to send.
      headers: Further headers, the key among them.

    Returns:
      The JSON reply.

    Raises:
      OSError: The service cannot be reached, or refuses.
      ValueError: The reply is too long or no JSON.
    """
    request = urllib.request.Request(
      self._url,
      data=json.dumps(document).encode(),
      headers={"Content-Type": "application/json", **headers},
      method="POST",
    )
    try:
      with self._opener.open(request, timeout=self._timeout_secs) as reply:
        content = reply.read(_MAX_REPLY_BYTES + 1)
    except http.client.HTTPException as error:
      raise OSError(f"broken reply: {type(error).__name__}") from error
    if len(content) > _MAX_REPLY_BYTES:
      raise ValueError(f"the reply is longer than {_MAX_REPLY_BYTES} bytes")
    try:
      return json.loads(content)
    except RecursionError as error:
      raise ValueError("the reply nests too deep") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
  def redirect_request(self, *_) -> None:
    return None


def key_from(variable: str) -> str:
  """Returns the service key that an environment variable holds.

  Args:
    variable: Name of the variable.

  Raises:
    ValueError: It is not set, or it could not be a header.
  """
  key = os.environ.get(variable, "").strip()
  if not key.isascii() or not key.isprintable() or not key:
    raise ValueError(
      f"a service key must stand in the environment variable {variable}, found"
      f" {'nothing usable' if key else 'none'}; export it."
    )
  return key


def excuse(error: Exception) -> str:
  """Says in one line why a service failed.

  Args:
    error: What `Service.post` raised.

  Returns:
    The status or the reason, at most 200 characters, never the key.
  """
  if isinstance(error, urllib.error.HTTPError):
    return f"the service answered with status {error.code}"
  return " ".join(str(error).split())[:200] or type(error).__name__
