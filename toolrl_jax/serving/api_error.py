"""Errors of the HTTP service, in the shape that OpenAI's clients read.

From what went wrong to a status and a JSON object. Knows nothing of requests.
"""

from typing import Any

from toolrl_jax.rollout import online
from toolrl_jax.rollout.request import RolloutError

RETRY_SECS = 1

_TYPES = {
  401: "authentication_error",
  404: "not_found_error",
  429: "rate_limit_error",
  500: "server_error",
  503: "server_error",
}


class ApiError(Exception):
  """A request that is answered with an error.

  Attributes:
    status: HTTP status, 400 to 599.
    message: What was wrong and what is allowed, one line.
    param: The field that it concerns, or None.
    code: A word that programs look for, or None.
  """

  def __init__(
    self,
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
  ):
    super().__init__(message)
    self.status, self.message = status, message
    self.param, self.code = param, code

  def document(self) -> dict[str, Any]:
    """Returns the JSON object of the response."""
    return {
      "error": {
        "message": self.message,
        "type": _TYPES.get(self.status, "invalid_request_error"),
        "param": self.param,
        "code": self.code,
      }
    }

  def headers(self) -> dict[str, str]:
    """Returns the headers that belong to the status."""
    if self.status == 401:
      return {"WWW-Authenticate": "Bearer"}
    if self.status in (429, 503):
      return {"Retry-After": str(RETRY_SECS)}
    return {}


def of_rollout(error: Exception) -> ApiError:
  """Returns what a client is told of an error of the online rollout."""
  match error:
    case online.PromptTooLongError():
      return ApiError(
        400, str(error), param="messages", code="context_length_exceeded"
      )
    case online.RequestError():
      return ApiError(400, str(error))
    case online.BusyError():
      return ApiError(429, str(error), code="rate_limit_exceeded")
    case online.DrainingError():
      return ApiError(503, str(error), code="shutting_down")
    case RolloutError():
      return ApiError(500, str(error))
  raise error
