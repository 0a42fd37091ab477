"""What BFCL's worker may not do, whatever text reaches it.

An audit hook refuses evaluated strings, processes, sockets and writing
outside the worker's own folder; limits bound its memory and its processor
time. The executor never evaluates text anyway: this keeps a mistake there
harmless. Part of `bfcl_worker` and, like it, of the standard library alone.
"""

import os
import resource
import sys
from typing import Any

_REFUSED_EVENTS = (
  "ctypes.",
  "os.exec",
  "os.fork",
  "os.kill",
  "os.posix_spawn",
  "os.spawn",
  "os.startfile",
  "os.system",
  "pty.",
  "socket.",
  "subprocess.",
)
_CHANGING_EVENTS = (
  "os.chmod",
  "os.link",
  "os.mkdir",
  "os.remove",
  "os.rename",
  "os.rmdir",
  "os.symlink",
  "os.truncate",
  "shutil.",
)


def refuse_dangers(folder: str) -> None:
  """Installs a hook that no code of this process can take off.

  Args:
    folder: The only folder that may be written to.
  """
  root = os.path.realpath(folder) + os.sep

  def is_outside(path: Any) -> bool:
    if isinstance(path, int):
      return False
    return not (os.path.realpath(os.fsdecode(path)) + os.sep).startswith(root)

  def hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "exec":
      # What `eval` and `exec` make of a text carries this name.
      is_refused = getattr(arguments[0], "co_filename", "") == "<string>"
    elif event == "open":
      flags = arguments[2] or 0
      is_writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
      is_refused = bool(is_writing) and is_outside(arguments[0])
    elif event.startswith(_CHANGING_EVENTS):
      is_refused = is_outside(arguments[0])
    else:
      is_refused = event.startswith(_REFUSED_EVENTS)
    if is_refused:
      raise PermissionError(f"{event} is not allowed here")

  sys.addaudithook(hook)


def limit_memory(memory_gib: float) -> None:
  """Bounds the address space of this process, and forbids core files.

  Args:
    memory_gib: Most address space, in GiB.
  """
  limit = int(memory_gib * 2**30)
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def allow_processor(secs: int) -> None:
  """Ends this process once it has used so much more processor time.

  For a request that hangs when nobody is left to end the process.

  Args:
    secs: From now on.
  """
  used = resource.getrusage(resource.RUSAGE_SELF)
  allowed = int(used.ru_utime + used.ru_stime) + secs + 1
  hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
  resource.setrlimit(resource.RLIMIT_CPU, (allowed, hard))
