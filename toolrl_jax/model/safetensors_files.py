"""The safetensors files of a Hugging Face folder, in slices and in pieces.

From a checked folder to a `layout.Reader`, and from tensors, fetched one after
another, to files. Knows nothing of devices.
"""

import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors
import tqdm

from toolrl_jax.model import layout, presets, source

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# Buffers that old exporters saved; the decoder computes them.
_COMPUTED_SUFFIXES = (
  ".rotary_emb.inv_freq",
  ".attn.masked_bias",
  ".attn.bias",
)

_DTYPES = ("F64", "F32", "F16", "BF16")


def reader(
  folder: pathlib.Path, config: presets.DecoderConfig
) -> layout.Reader:
  """Checks every tensor of a folder against the config.

  Args:
    folder: A Hugging Face folder, one file or sharded with an index.
    config: Shape of the model.

  Returns:
    Reads a slice of one tensor from disk.

  Raises:
    ValueError: If a file or tensor is missing, cut short, of a wrong shape or
      dtype, or not expected.
  """
  slices = {}
  for name, path, file in _tensors(folder):
    slices[name] = (path, file.get_slice(name))
  expected = list(layout.stored(config))
  for tensor in expected:
    if tensor.hf_name not in slices:
      raise ValueError(
        f"tensor {tensor.hf_name} is missing in {folder}; the config asks for "
        f"{len(expected)} tensors; download the checkpoint again."
      )
    _check_tensor(tensor, *slices[tensor.hf_name])
  _check_unexpected(slices, expected, config)

  paths = {name: path for name, (path, _) in slices.items()}
  del slices

  def read(tensor: layout.Tensor, index: layout.Index) -> np.ndarray:
    # Opened anew each time: pages of an open file would count as ours, until
    # all of it lay in memory.
    with _open(paths[tensor.hf_name]) as file:
      return file.get_slice(tensor.hf_name)[index]

  return read


def _tensors(folder: pathlib.Path):
  """Yields (name, path, open file) of every tensor."""
  if (folder / _SINGLE).exists():
    file = _open(folder / _SINGLE)
    for name in file.keys():  # noqa: SIM118  (no mapping)
      yield name, folder / _SINGLE, file
    return
  if not (folder / _INDEX).exists():
    raise ValueError(
      f"{folder} holds neither {_SINGLE} nor {_INDEX}; other weight formats "
      "are not read, save the model as safetensors."
    )
  weight_map = source.read_json(folder / _INDEX).get("weight_map")
  if not isinstance(weight_map, dict) or not weight_map:
    raise ValueError(
      f"{folder / _INDEX} has no weight_map; download the file again."
    )
  files = {}
  for name, file_name in weight_map.items():
    if pathlib.PurePath(str(file_name)).name != file_name:
      raise ValueError(
        f"{folder / _INDEX} must name files of its own folder, it places "
        f"tensor {name} in {file_name!r}."
      )
    path = folder / file_name
    if not path.is_file():
      raise ValueError(
        f"{path} is missing; {_INDEX} places tensor {name} there."
      )
    if file_name not in files:
      file = _open(path)
      files[file_name] = file, set(file.keys())
    file, names = files[file_name]
    if name not in names:
      raise ValueError(
        f"tensor {name} is missing in {path}, where {_INDEX} places it; "
        "download the checkpoint again."
      )
    yield name, path, file


def _open(path: pathlib.Path):
  try:
    return safetensors.safe_open(path, "np")
  except (safetensors.SafetensorError, OSError) as error:
    raise ValueError(_damage(path, error)) from None


def _damage(path: pathlib.Path, error: Exception) -> str:
  """Says what is wrong with a file that does not open."""
  size = path.stat().st_size
  with path.open("rb") as file:
    data_start = 8 + int.from_bytes(file.read(8), "little")
    text = file.read(data_start - 8) if data_start <= size else b""
  try:
    ends = {
      name: entry["data_offsets"][1]
      for name, entry in json.loads(text).items()
      if name != "__metadata__"
    }
    cut = [name for name, end in ends.items() if data_start + end > size]
  except (
    ValueError, AttributeError, KeyError, TypeError, IndexError,
    RecursionError,
  ):  # fmt: skip
    cut = []
  if cut:
    return (
      f"{path} is cut short: it ends inside or before tensor {cut[0]}; "
      "download it again."
    )
  return f"{path} is no whole safetensors file ({error}); download it again."


def _check_tensor(tensor: layout.Tensor, path: pathlib.Path, part) -> None:
  shape = tuple(part.get_shape())
  if shape != tensor.shape:
    raise ValueError(
      f"tensor {tensor.hf_name} in {path} must have shape {tensor.shape} by "
      f"its config.json, got {shape}."
    )
  if part.get_dtype() not in _DTYPES:
    raise ValueError(
      f"tensor {tensor.hf_name} in {path} must be one of {', '.join(_DTYPES)}, "
      f"got {part.get_dtype()}; quantised checkpoints are not read."
    )


def _check_unexpected(
  slices, expected: list[layout.Tensor], config: presets.DecoderConfig
) -> None:
  """Refuses tensors whose loss would change the model."""
  extra = set(slices) - {tensor.hf_name for tensor in expected}
  # A tied head may be saved a second time.
  if config.is_tied:
    extra.discard("lm_head.weight")
  extra = {name for name in extra if not name.endswith(_COMPUTED_SUFFIXES)}
  if extra:
    name = min(extra)
    raise ValueError(
      f"tensor {name} in {slices[name][0]} is not expected by its config.json "
      f"({len(extra)} such); this variant is not covered."
    )


class Piece(NamedTuple):
  """One tensor to write.

  Attributes:
    name: Its Hugging Face name.
    shape: Its shape, as stored.
    dtype: Its dtype, as stored.
    fetch: Brings it to the host, C-contiguous.
  """

  name: str
  shape: tuple[int, ...]
  dtype: np.dtype
  fetch: Callable[[], np.ndarray]

  @property
  def num_bytes(self) -> int:
    """Its size in the file."""
    return int(np.prod(self.shape)) * self.dtype.itemsize


def write(
  folder: pathlib.Path, pieces: Sequence[Piece], *, max_shard_bytes: int
) -> None:
  """Writes tensors, over several files with an index where too large.

  Args:
    folder: An existing folder.
    pieces: The tensors, in the order in which they are fetched and written.
    max_shard_bytes: Size above which they are split over files.
  """
  files = _split(pieces, max_shard_bytes)
  weight_map: dict[str, str] = {}
  total = sum(piece.num_bytes for piece in pieces)
  with source.progress("writing", total) as progress:
    for number, members in enumerate(files, start=1):
      name = _SINGLE
      if len(files) > 1:
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
      _write_safetensors(folder / name, members, progress)
      weight_map |= {piece.name: name for piece in members}
  if len(files) > 1:
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    source.write_json(folder / _INDEX, index)


def _split(pieces: Sequence[Piece], max_bytes: int) -> list[list[Piece]]:
  """Splits the tensors over files of at most `max_bytes`, in order."""
  files: list[list[Piece]] = [[]]
  size = 0
  for piece in pieces:
    if files[-1] and size + piece.num_bytes > max_bytes:
      files.append([])
      size = 0
    files[-1].append(piece)
    size += piece.num_bytes
  return files


_DTYPE_CODES = {
  "float64": "F64",
  "float32": "F32",
  "float16": "F16",
  "bfloat16": "BF16",
}


def _write_safetensors(
  path: pathlib.Path, pieces: Sequence[Piece], progress: tqdm.tqdm
) -> None:
  """Writes one file tensor by tensor.

  The library's writer takes every tensor of a file at once, which would put
  the model in host memory. The format is a length, a JSON header and the bytes.
  """
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  offset = 0
  for piece in pieces:
    end = offset + piece.num_bytes
    header[piece.name] = {
      "dtype": _DTYPE_CODES[piece.dtype.name],
      "shape": list(piece.shape),
      "data_offsets": [offset, end],
    }
    offset = end
  text = json.dumps(header, separators=(",", ":")).encode()
  text += b" " * (-len(text) % 8)
  with path.open("wb") as file:
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for piece in pieces:
      file.write(piece.fetch().view(np.uint8).data)
      progress.update(piece.num_bytes)
    file.flush()
    os.fsync(file.fileno())
