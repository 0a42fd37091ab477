"""The key that clients of a server send.

From an Authorization header to whether it is the server's. Knows neither HTTP
nor gRPC.
"""

import hmac


def is_right(sent: bytes, key: str) -> bool:
  """Whether a header holds the key; takes as long for any wrong one.

  Args:
    sent: Value of the header, `Bearer KEY`; the scheme in any case (RFC 9110,
      section 11.1).
    key: The server's key.
  """
  scheme, _, found = sent.partition(b" ")
  return scheme.lower() == b"bearer" and hmac.compare_digest(
    found.strip(), key.encode()
  )
