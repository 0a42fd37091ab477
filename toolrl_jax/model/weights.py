"""Checkpoints in and out: Hugging Face folders and GGUF files to parameters.

Reads each tensor in slices and places every slice on its own device, so that
host memory holds about one stacked parameter. Writes Hugging Face folders
whole or not at all. Knows nothing of meshes (shardings come in), text or
training state.
"""

import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from toolrl_jax import hosts
from toolrl_jax.model import (
  gguf,
  layout,
  presets,
  safetensors_files,
  source,
  tokenizer,
)

Params = Any

_MAX_SHARD_BYTES = 5_000_000_000

_TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def load_config(path: str | pathlib.Path) -> presets.DecoderConfig:
  """Reads a checkpoint's shape, none of its weights.

  Args:
    path: A Hugging Face folder, a .gguf file, or "bundled:tiny".

  Returns:
    The shape of the model.

  Raises:
    ValueError: If nothing is there, or the model is not covered.
  """
  found = source.locate(path)
  if found.is_file():
    return gguf.read_config(gguf.open_file(found))
  try:
    return presets.from_hf_config(source.read_json(found / "config.json"))
  except ValueError as error:
    raise ValueError(f"{found}: {error}") from None


def load(
  path: str | pathlib.Path,
  *,
  dtype: jax.typing.DTypeLike = jnp.float32,
  shardings: Params | Callable[[presets.DecoderConfig], Params] | None = None,
) -> tuple[presets.DecoderConfig, Params]:
  """Loads a checkpoint.

  Every tensor's name and shape is checked before the first one is placed.

  Args:
    path: A Hugging Face folder, a .gguf file, or "bundled:tiny".
    dtype: Dtype of every parameter.
    shardings: A pytree of `jax.sharding.Sharding` like the parameters, or a
      function from the shape to it. None: the first device.

  Returns:
    The model's shape and its parameters.

  Raises:
    ValueError: If a file or tensor is missing, cut short, of a wrong shape or
      not expected; names both.
  """
  config, read = _open(source.locate(path))
  if callable(shardings):
    shardings = shardings(config)
  params = layout.assemble(config, read, dtype=dtype, shardings=shardings)
  return config, params


def _open(found: pathlib.Path) -> tuple[presets.DecoderConfig, layout.Reader]:
  """Checks a checkpoint; returns its shape and what reads its tensors."""
  if found.is_file():
    file = gguf.open_file(found)
    config = gguf.read_config(file)
    return config, gguf.reader(file, config)
  config = load_config(found)
  return config, safetensors_files.reader(found, config)


def stop_ids(path: str | pathlib.Path) -> tuple[int, ...]:
  """Returns the token ids that end an answer of this checkpoint's model.

  Args:
    path: A Hugging Face folder, a .gguf file, or "bundled:tiny".

  Returns:
    At least one id: those of `generation_config.json` (else `config.json`),
    and the tokenizer's end token. A GGUF file names them in its metadata.

  Raises:
    ValueError: If the checkpoint names none.
  """
  found = source.locate(path)
  if found.is_file():
    return gguf.stop_ids(gguf.open_file(found))
  ids = _as_ids(_token_fields(found).get("eos_token_id"))
  end = tokenizer.load(found).eos_token_id
  ids = tuple(dict.fromkeys((*ids, *_as_ids(end))))
  if not ids:
    raise ValueError(
      f"{found} names no end token; set eos_token_id in generation_config.json."
    )
  return ids


def save(
  path: str | pathlib.Path,
  config: presets.DecoderConfig,
  params: Params,
  *,
  tokenizer_from: str | pathlib.Path | None = None,
  dtype: jax.typing.DTypeLike | None = None,
  max_shard_bytes: int = _MAX_SHARD_BYTES,
) -> None:
  """Writes a Hugging Face folder: config, weights, tokenizer, chat template.

  The folder is written beside `path` and renamed at the end, so that `path` is
  never half a checkpoint. Host memory holds one layer's tensor at a time. In a
  run of several processes all have to call it.

  Args:
    path: Folder to write; an older checkpoint there is replaced.
    config: Shape of the model.
    params: The parameter pytree.
    tokenizer_from: Checkpoint whose tokenizer, chat template and end tokens
      are copied. None: weights and config only.
    dtype: Dtype of the saved tensors. None: that of `params`.
    max_shard_bytes: Size above which the weights are split over files.

  Raises:
    ValueError: If `path` holds something that is no checkpoint, or the
      parameters do not fit the config.
  """
  pieces = list(_pieces(config, params, dtype))
  if not hosts.is_first():
    # The first process writes; the others have their part in every fetch.
    for piece in pieces:
      piece.fetch()
    return
  _write(
    path,
    config,
    pieces,
    tokenizer_from=tokenizer_from,
    max_shard_bytes=max_shard_bytes,
  )


def copy(
  src: str | pathlib.Path,
  dst: str | pathlib.Path,
  *,
  dtype: jax.typing.DTypeLike,
  max_shard_bytes: int = _MAX_SHARD_BYTES,
) -> None:
  """Writes a checkpoint as a Hugging Face folder, one tensor after another.

  Host memory holds one tensor, never the model.

  Args:
    src: A Hugging Face folder, a .gguf file, or "bundled:tiny".
    dst: Folder to write, as in `save`.
    dtype: Dtype of the saved tensors.
    max_shard_bytes: Size above which the weights are split over files.

  Raises:
    ValueError: As in `load` for `src`, as in `save` for `dst`.
  """
  found = source.locate(src)
  config, read = _open(found)
  pieces = [
    safetensors_files.Piece(
      tensor.hf_name,
      tensor.shape,
      np.dtype(dtype),
      functools.partial(_read_whole, read, tensor, np.dtype(dtype)),
    )
    for tensor in layout.stored(config)
  ]
  _write(
    dst, config, pieces, tokenizer_from=found, max_shard_bytes=max_shard_bytes
  )


def _read_whole(
  read: layout.Reader, tensor: layout.Tensor, dtype: np.dtype
) -> np.ndarray:
  everything = (slice(None),) * len(tensor.shape)
  piece = np.asarray(read(tensor, everything)).astype(dtype, copy=False)
  return np.ascontiguousarray(piece)


def _pieces(
  config: presets.DecoderConfig,
  params: Params,
  dtype: jax.typing.DTypeLike | None,
) -> Iterator[safetensors_files.Piece]:
  """Yields the tensors of the folder, fetched only when written."""
  for tensor in layout.stored(config):
    leaf = params
    for key in tensor.path:
      if key not in leaf:
        raise ValueError(
          f"parameter {'/'.join(tensor.path)} is missing; give the config that "
          "the parameters were made with."
        )
      leaf = leaf[key]
    shape = tensor.shape[::-1] if tensor.is_kernel else tensor.shape
    expected = shape if tensor.layer is None else (config.num_layers, *shape)
    if leaf.shape != expected:
      raise ValueError(
        f"parameter {'/'.join(tensor.path)} must have shape {expected}, got "
        f"{leaf.shape}; give the config that the parameters were made with."
      )
    saved = np.dtype(leaf.dtype if dtype is None else dtype)

    def fetch(leaf=leaf, tensor=tensor, saved=saved) -> np.ndarray:
      piece = leaf if tensor.layer is None else leaf[tensor.layer]
      host = hosts.fetch(piece).astype(saved, copy=False)
      return np.ascontiguousarray(host.T if tensor.is_kernel else host)

    yield safetensors_files.Piece(tensor.hf_name, tensor.shape, saved, fetch)


def _write(
  path: str | pathlib.Path,
  config: presets.DecoderConfig,
  pieces: list[safetensors_files.Piece],
  *,
  tokenizer_from: str | pathlib.Path | None,
  max_shard_bytes: int,
) -> None:
  """Writes a whole folder."""
  with source.whole_folder(path) as folder:
    save_description(
      folder,
      config,
      dtype=pieces[0].dtype,
      tokenizer_from=tokenizer_from,
    )
    safetensors_files.write(folder, pieces, max_shard_bytes=max_shard_bytes)


def save_description(
  folder: pathlib.Path,
  config: presets.DecoderConfig,
  *,
  dtype: jax.typing.DTypeLike,
  tokenizer_from: str | pathlib.Path | None,
) -> None:
  """Writes everything of a checkpoint but the weights.

  Args:
    folder: An existing folder.
    config: Shape of the model.
    dtype: Dtype of the tensors that will stand beside.
    tokenizer_from: As in `save`.

  Raises:
    ValueError: If `tokenizer_from` is no checkpoint or has no tokenizer.
  """
  hf_config = presets.to_hf_config(config, np.dtype(dtype).name)
  tokens: Mapping[str, Any] = dict.fromkeys(_TOKEN_FIELDS)
  if tokenizer_from is not None:
    found = source.locate(tokenizer_from)
    tokenizer.copy(found, folder)
    tokens = _saved_token_fields(found)
    _write_generation_config(found, folder, tokens)
  source.write_json(folder / "config.json", {**hf_config, **tokens})


def _token_fields(folder: pathlib.Path) -> Mapping[str, Any]:
  """Returns the special ids of a folder; the generation config goes first."""
  fields: dict[str, Any] = {}
  for name in ("config.json", "generation_config.json"):
    if (folder / name).exists():
      content = source.read_json(folder / name)
      fields |= {
        key: content[key]
        for key in _TOKEN_FIELDS
        if content.get(key) is not None
      }
  return fields


def _saved_token_fields(found: pathlib.Path) -> Mapping[str, Any]:
  """Returns the special ids that an export states, absent ones as None."""
  fields: dict[str, Any] = dict.fromkeys(_TOKEN_FIELDS)
  if found.is_file():
    fields |= gguf.token_fields(gguf.open_file(found))
  else:
    fields |= _token_fields(found)
  ids = stop_ids(found)
  fields["eos_token_id"] = ids[0] if len(ids) == 1 else list(ids)
  return fields


def _write_generation_config(
  found: pathlib.Path, folder: pathlib.Path, tokens: Mapping[str, Any]
) -> None:
  """Copies the source's generation config, with all its end tokens."""
  content: Mapping[str, Any] = {}
  if (found / "generation_config.json").is_file():
    content = source.read_json(found / "generation_config.json")
  stated = {key: value for key, value in tokens.items() if value is not None}
  source.write_json(folder / "generation_config.json", {**content, **stated})


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
  """Returns the ids of a field that holds none, one or several."""
  if value is None:
    return ()
  return tuple(value) if isinstance(value, list) else (value,)
