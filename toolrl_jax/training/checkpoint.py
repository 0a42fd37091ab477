"""Checkpoints of a run: train state and host state in one step directory.

A step is written beside the others and renamed when it is whole, so a run
killed at any instant finds its newest whole step; a digest beside the values
tells of bits that changed on disk. The module does not know what the host
state means.
"""

import base64
import contextlib
import hashlib
import json
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from toolrl_jax import hosts
from toolrl_jax.model import fingerprint
from toolrl_jax.training.state import TrainState

_ARRAY = "__array__"
_KEY = "__prng_key__"
_TUPLE = "__tuple__"
_TAGS = (_ARRAY, _KEY, _TUPLE)


class SaveError(OSError):
  """A step that could not be written; the text is one line for the user."""


class RunCheckpoints:
  """The checkpoints of one run's directory; also a context manager.

  Attributes:
    directory: Where the step directories lie.
  """

  def __init__(
    self, directory: epath.PathLike, *, keep_last: int, keep_best: int
  ):
    """Opens the directory and makes it when missing.

    Args:
      directory: Where the step directories lie.
      keep_last: Newest steps kept, at least 1.
      keep_best: Steps of the highest metric kept beside them; 0 keeps none.

    Raises:
      ValueError: When a count is out of range.
    """
    if keep_last < 1 or keep_best < 0:
      raise ValueError(
        "keep_last must be at least 1 and keep_best at least 0, got "
        f"{keep_last} and {keep_best}; set config.checkpoint."
      )
    self.directory = epath.Path(directory)
    if "://" not in str(directory):
      self.directory = epath.Path(pathlib.Path(directory).absolute())
    self._keep = policies.AnyPreservationPolicy(
      [
        policies.LatestN(keep_last),
        policies.BestN(
          get_metric_fn=_metric,
          n=keep_best,
          keep_checkpoints_without_metrics=False,
        ),
      ]
    )
    self._manager = self._open()

  def _open(self) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
      self.directory,
      options=ocp.CheckpointManagerOptions(
        preservation_policy=self._keep,
        # Without it the manager does not write metrics down.
        best_fn=_metric,
        cleanup_tmp_directories=True,
      ),
      item_names=("state", "host"),
    )

  def steps(self) -> list[int]:
    """Returns the whole steps on disk, ascending."""
    self._manager.reload()
    return sorted(self._manager.all_steps())

  def save(
    self,
    step: int,
    state: TrainState,
    host: Mapping[str, Any],
    *,
    metric: float | None = None,
  ) -> None:
    """Starts to write a step; writing goes on behind the next steps.

    Values are copied before it returns, so the state may be donated and the
    host state changed at once. A step that is on disk already is left as is.

    Args:
      step: Training step the state stands at.
      state: State to save.
      host: Nested dicts, lists and tuples of Python scalars, numpy arrays and
        PRNG keys; comes back as it was.
      metric: Higher is better, for `keep_best`; None is never a best.

    Raises:
      ValueError: When the host state holds anything else.
      SaveError: When this step, or the one before, could not be written.
    """
    if step in self._manager.all_steps():
      return
    encoded = _encode(dict(host), "host")
    with self._writing():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state),
          host=ocp.args.JsonSave(
            {"host": encoded, "digest": digest(state, encoded)}
          ),
        ),
        metrics=None if metric is None else {"metric": float(metric)},
      )

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    """Says in one line that a step, this or the one before, is not on disk."""
    try:
      yield
    # Orbax and tensorstore raise many kinds for a full or lost disk.
    except Exception as error:  # noqa: BLE001
      raise SaveError(
        f"{self.directory} cannot be written: {_first_line(error)}; free "
        "space or mend the folder"
      ) from error

  def restore_latest(
    self, template: TrainState, *, host_keys: Sequence[str] = ()
  ) -> tuple[int, TrainState, dict[str, Any]] | None:
    """Reads the newest step that is whole.

    A step that cannot be read is moved to `corrupt-STEP` once an older one
    was, with a warning.

    Args:
      template: Arrays or `jax.ShapeDtypeStruct`s with the shapes, dtypes and
        shardings to restore into; any mesh and strategy will do.
      host_keys: What the host state of a whole step holds.

    Returns:
      Step, state and host state; None when the directory holds no step.

    Raises:
      ValueError: When there are steps and none can be read into the template.
    """
    template = jax.tree.map(_describe, template)
    failed: dict[int, str] = {}
    for step in reversed(self.steps()):
      try:
        state, host = _checked(self._read(step, template), host_keys)
      except (ValueError, KeyError, TypeError) as error:
        failed[step] = _first_line(error)
        logging.warning("checkpoint %d cannot be read: %s", step, failed[step])
        continue
      self._set_aside(failed)
      return step, state, host
    if failed:
      newest = max(failed)
      raise ValueError(
        f"no checkpoint in {self.directory} fits this run; step {newest}: "
        f"{failed[newest]} Use the configuration it was written with, or "
        "another workdir."
      )
    return None

  def _read(self, step: int, template: TrainState) -> Mapping[str, Any]:
    """Reads a step.

    Raises:
      ValueError: This process, or another of the run, could not.
    """
    reason = ""
    restored: Mapping[str, Any] = {}
    try:
      with _reader(self.directory) as reader:
        restored = reader.restore(
          step,
          args=ocp.args.Composite(
            state=ocp.args.StandardRestore(template),
            host=ocp.args.JsonRestore(),
          ),
        )
    # A damaged directory fails in whatever layer meets the damage first.
    except Exception as error:  # noqa: BLE001
      reason = _first_line(error)
    is_failed = hosts.gather([bool(reason)])[:, 0]
    if is_failed.any():
      first = int(np.flatnonzero(is_failed)[0])
      raise ValueError(reason or f"process {first} cannot")
    return restored

  def _set_aside(self, steps: Collection[int]) -> None:
    """Moves steps away, so that they can be written again."""
    if not steps:
      return
    self._manager.close()
    for step in steps if hosts.is_first() else ():
      target = self.directory / f"corrupt-{step}"
      if target.exists():
        target.rmtree()
      (self.directory / str(step)).rename(target)
    hosts.wait_for_all("set aside")
    self._manager = self._open()

  def wait(self) -> None:
    """Returns when every started step is whole on disk.

    Raises:
      SaveError: One could not be written.
    """
    with self._writing():
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits and frees the writer's threads.

    Raises:
      SaveError: A step could not be written.
    """
    with self._writing():
      self._manager.close()

  def __enter__(self) -> "RunCheckpoints":
    return self

  def __exit__(self, *exception: object) -> None:
    self.close()


def _reader(directory: epath.Path) -> ocp.CheckpointManager:
  """Reads for this process alone, so that no other waits if it fails."""
  own = hosts.number()
  return ocp.CheckpointManager(
    directory,
    options=ocp.CheckpointManagerOptions(
      read_only=True,
      multiprocessing_options=ocp.options.MultiprocessingOptions(
        primary_host=own,
        active_processes={own},
        barrier_sync_key_prefix=f"reader_{own}",
      ),
    ),
    item_names=("state", "host"),
  )


def _checked(
  restored: Mapping[str, Any], host_keys: Sequence[str]
) -> tuple[TrainState, dict[str, Any]]:
  """Returns state and host state of a step, if they are whole.

  Raises:
    ValueError: Values were damaged, or the host state is another run's.
  """
  state, encoded = restored["state"], restored["host"]["host"]
  if digest(state, encoded) != restored["host"]["digest"]:
    raise ValueError("its values are not those that were saved")
  host = _decode(encoded)
  if missing := set(host_keys) - set(host):
    raise ValueError(f"the host state lacks {', '.join(sorted(missing))}")
  return state, host


def _first_line(error: Exception) -> str:
  line = (str(error).splitlines() or [type(error).__name__])[0]
  # TensorStore would go on with the address of an object.
  return line.partition(" See full TensorStore details")[0][:300]


def digest(state: TrainState, host: Any) -> str:
  """Returns a short text that tells a state from a damaged one.

  Args:
    state: State of any placement.
    host: JSON values that belong to it.

  Returns:
    Hexadecimal digits.
  """
  text = json.dumps([fingerprint.words(state), host], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _metric(metrics: Mapping[str, float]) -> float:
  return metrics["metric"]


def _describe(x: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def _encode(value: Any, where: str) -> Any:
  """Turns host state into JSON that names what JSON has not."""
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, dict):
    for key in value:
      if not isinstance(key, str) or key in _TAGS:
        raise ValueError(
          f"keys of {where} must be text other than {', '.join(_TAGS)}, got "
          f"{key!r}; rename it."
        )
    return {k: _encode(v, f"{where}.{k}") for k, v in value.items()}
  if isinstance(value, list | tuple):
    items = [_encode(v, f"{where}[{i}]") for i, v in enumerate(value)]
    return {_TUPLE: items} if isinstance(value, tuple) else items
  if isinstance(value, jax.Array) and jax.dtypes.issubdtype(
    value.dtype, jax.dtypes.prng_key
  ):
    data = np.asarray(jax.random.key_data(value))
    return {_KEY: _encode(data, where), "impl": str(jax.random.key_impl(value))}
  if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
    return {
      _ARRAY: base64.b64encode(value.tobytes()).decode("ascii"),
      "dtype": value.dtype.str,
      "shape": list(value.shape),
      "is_scalar": isinstance(value, np.generic),
    }
  raise ValueError(
    f"{where} must hold Python scalars, dicts, lists, tuples, numpy arrays or "
    f"PRNG keys, got {type(value).__name__}; convert it first."
  )


def _decode(value: Any) -> Any:
  """Undoes `_encode`."""
  if isinstance(value, list):
    return [_decode(v) for v in value]
  if not isinstance(value, dict):
    return value
  if _TUPLE in value:
    return tuple(_decode(v) for v in value[_TUPLE])
  if _KEY in value:
    return jax.random.wrap_key_data(_decode(value[_KEY]), impl=value["impl"])
  if _ARRAY in value:
    data = base64.b64decode(value[_ARRAY])
    flat = np.frombuffer(data, dtype=np.dtype(value["dtype"])).copy()
    array = flat.reshape(value["shape"])
    return array[()] if value["is_scalar"] else array
  return {k: _decode(v) for k, v in value.items()}
