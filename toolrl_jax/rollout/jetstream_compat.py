"""Makes google-jetstream 0.2.2 run on a current JAX, and hands it out.

The only module that imports jetstream: others take its parts from here, so
that the repairs below always come first. They happen at import because the
engine and the driver inherit from JetStream's classes.

1. JetStream names two classes of seqio, which would bring TensorFlow: an empty
   stand-in is there while JetStream is imported, and gone afterwards.
2. Importing its orchestrator sets the root logger to DEBUG with a handler on
   stdout: both are put back. It logs several lines a step through the root
   logger: they go to the logger "jetstream", which shows warnings only.
3. It calls `jax.tree_map`, which newer JAX lacks, to delete prefixes.
4. Its threads kill the process with SIGKILL when they fail, and one of them
   keeps the interpreter from ending: ours only log, and are daemons.
"""

import logging
import sys
import threading
import types

import jax


def _stand_in_for_seqio() -> dict[str, types.ModuleType]:
  """Returns modules with the two names that JetStream imports of seqio."""
  package = types.ModuleType("seqio")
  vocabularies = types.ModuleType("seqio.vocabularies")
  for name in ("Vocabulary", "SentencePieceVocabulary"):
    setattr(vocabularies, name, type(name, (), {}))
  package.__dict__["vocabularies"] = vocabularies
  return {"seqio": package, "seqio.vocabularies": vocabularies}


def _import_jetstream():
  """Imports JetStream without seqio and without its logging set-up."""
  stand_in = _stand_in_for_seqio()
  real = {name: sys.modules.get(name) for name in stand_in}
  root = logging.getLogger()
  level, handlers = root.level, list(root.handlers)
  sys.modules.update(stand_in)
  try:
    from jetstream.core import orchestrator
    from jetstream.engine import engine_api, tokenizer_api, tokenizer_pb2
  finally:
    root.setLevel(level)
    root.handlers[:] = handlers
    for name, module in real.items():
      if module is None:
        del sys.modules[name]
      else:
        sys.modules[name] = module
  return orchestrator, engine_api, tokenizer_api, tokenizer_pb2


def delete_pytree(tree) -> None:
  """Deletes the device arrays of a pytree; other leaves stay."""
  for leaf in jax.tree.leaves(tree):
    if isinstance(leaf, jax.Array) and not leaf.is_deleted():
      leaf.delete()


class DriverThread(threading.Thread):
  """A daemon thread that logs its failure and leaves the process alive."""

  def __init__(self, *, target, name: str, daemon: bool = True):
    # JetStream leaves one of its threads non-daemon: a driver that nobody
    # stopped would then keep the interpreter from ending.
    del daemon
    super().__init__(target=target, name=name, daemon=True)

  def run(self) -> None:
    """Runs the target; an exception ends the thread, not the process."""
    try:
      super().run()
    except Exception:  # noqa: BLE001 - nobody above a thread could catch it
      logging.getLogger("jetstream").exception("thread %s failed", self.name)


orchestrator, engine_api, tokenizer_api, tokenizer_pb2 = _import_jetstream()
jetstream_pb2 = orchestrator.jetstream_pb2
jetstream_pb2_grpc = orchestrator.jetstream_pb2_grpc
orchestrator.delete_pytree = delete_pytree
orchestrator.JetThread = DriverThread
orchestrator.logging = logging.getLogger("jetstream")
orchestrator.logging.setLevel(logging.WARNING)


class SingleEngine(engine_api.Engine):  # type: ignore[name-defined]
  """What JetStream asks of an engine that prefills and decodes by itself."""

  def get_prefix_destination_sharding(self) -> None:
    """Returns nothing: the prefix stays where it is."""

  def get_tokenizer(self):
    """Returns parameters that nobody reads."""
    return tokenizer_pb2.TokenizerParameters(path="none")

  @property
  def samples_per_slot(self) -> int:
    """One: a row frees as soon as its request ends."""
    return 1

  @property
  def mesh(self) -> None:
    """No mesh: programs follow the placement of the parameters."""

  @property
  def colocated_cpus(self) -> None:
    """None are known."""
