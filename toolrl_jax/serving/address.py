"""Where a server listens: HOST:PORT to a port that is its own.

Knows nothing of what is said there.
"""

import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterator
from typing import NamedTuple


class Address(NamedTuple):
  """A place to listen at.

  Attributes:
    host: Name or number of an interface of this machine.
    port: 0 to 65535; 0 is any that is free.
  """

  host: str
  port: int

  @property
  def is_local(self) -> bool:
    """Whether only this machine can connect."""
    try:
      return ipaddress.ip_address(self.host).is_loopback
    except ValueError:
      return self.host == "localhost"


def parse(text: str) -> Address:
  """Reads HOST:PORT; brackets around an IPv6 host are taken off.

  Raises:
    ValueError: It is something else.
  """
  host, _, port = text.rpartition(":")
  is_bracketed = host.startswith("[") and host.endswith("]")
  host = host.removeprefix("[").removesuffix("]")
  is_port = port.isascii() and port.isdecimal() and int(port) <= 65535
  if not is_port or not re.fullmatch(
    r"[\w.:%-]+" if is_bracketed else r"[\w.-]+", host
  ):
    raise ValueError(
      f"must be HOST:PORT, for example 127.0.0.1:8000, got {text!r}."
    )
  return Address(host, int(port))


@contextlib.contextmanager
def bind(address: Address) -> Iterator[socket.socket]:
  """Takes a port until the end of the `with` block.

  Args:
    address: Where.

  Yields:
    A socket that is bound and does not listen yet.

  Raises:
    ValueError: Somebody else has the port, or the host is not this machine's.
  """
  host, port = address
  try:
    (family, kind, _, _, where), *_ = socket.getaddrinfo(
      host, port, type=socket.SOCK_STREAM
    )
    bound = socket.socket(family, kind)
  except OSError as error:
    raise ValueError(f"{host} is no host: {error.strerror}.") from error
  with bound:
    try:
      # Connections of a server before this one may still linger.
      bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      bound.bind(where)
    except OSError as error:
      raise ValueError(
        f"{host}:{port} cannot be had: {error.strerror}; stop what listens "
        "there or name another port."
      ) from error
    yield bound
