"""GGUF files of Qwen2.5, Qwen3 and Llama 3, read and dequantised.

From one .gguf file to a `DecoderConfig`, a `layout.Reader` and the file's
metadata, out of which `tokenizer.py` rebuilds the tokenizer. The `gguf`
package parses the file and dequantises rows. Writes nothing.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import quants

from toolrl_jax.model import decoder, layout, presets

# Kinds of token in `tokenizer.ggml.token_type`.
CONTROL = int(gguf.TokenType.CONTROL)
USER_DEFINED = int(gguf.TokenType.USER_DEFINED)
UNUSED = int(gguf.TokenType.UNUSED)

_FAMILIES = ("qwen2", "qwen3", "llama")

# Llama 3's scaling comes as divisors of the frequencies.
_ROPE_TENSOR = "rope_freqs.weight"
_LOW_FREQ_FACTOR, _HIGH_FREQ_FACTOR = 1.0, 4.0
_ORIGINAL_MAX_POSITIONS = (8192, *(1 << power for power in range(4, 21)))

# Ends of turn and text that the metadata need not name, by their text.
_END_TOKENS = (
  "<|im_end|>",
  "<|endoftext|>",
  "<|eot_id|>",
  "<|eom_id|>",
  "<|end_of_text|>",
)


class GgufFile(NamedTuple):
  """A parsed file.

  Attributes:
    path: Where it lies.
    metadata: Every key with its Python value.
    tensors: Every tensor by name; data stays on disk until sliced.
  """

  path: pathlib.Path
  metadata: Mapping[str, Any]
  tensors: Mapping[str, gguf.ReaderTensor]


class _Reader(gguf.GGUFReader):
  """A reader that names the tensor at which a file was cut."""

  def _build_tensors(self, start_offs: int, fields: list) -> None:
    for field in fields:
      _, name, _, dims, kind, offset = field.parts
      block, block_bytes = gguf.GGML_QUANT_SIZES[
        gguf.GGMLQuantizationType(kind[0])
      ]
      num_bytes = int(np.prod(dims)) // block * block_bytes
      if start_offs + int(offset[0]) + num_bytes > len(self.data):
        raise ValueError(
          f"it is cut short inside or before tensor {bytes(name).decode()}"
        )
    super()._build_tensors(start_offs, fields)


def open_file(path: pathlib.Path) -> GgufFile:
  """Parses a file's metadata and tensor table.

  Args:
    path: A .gguf file.

  Returns:
    The parsed file.

  Raises:
    ValueError: If it is no GGUF file or is cut short.
  """
  stat = path.stat()
  return _open_file(path, stat.st_mtime_ns, stat.st_size)


# Weights, stop ids and the tokenizer each need the metadata, whose hundreds of
# thousands of strings take seconds to parse.
@functools.lru_cache(maxsize=1)
def _open_file(path: pathlib.Path, mtime_ns: int, size: int) -> GgufFile:
  del mtime_ns, size  # They make a changed file a new one.
  with path.open("rb") as stream:
    if stream.read(4) != b"GGUF":
      raise ValueError(
        f"{path} is no GGUF file; name a .gguf file or a Hugging Face folder."
      )
  try:
    file = _Reader(path)
    metadata = {name: field.contents() for name, field in file.fields.items()}
  except (ValueError, IndexError, KeyError, TypeError, OSError) as error:
    raise ValueError(
      f"{path} is no whole GGUF file: {error}; download it again."
    ) from None
  tensors = {tensor.name: tensor for tensor in file.tensors}
  return GgufFile(path, metadata, tensors)


def read_config(file: GgufFile) -> presets.DecoderConfig:
  """Reads the model's shape from the metadata.

  Args:
    file: A parsed file.

  Returns:
    The shape; the vocabulary's size is that of the embedding, and a file
    without an output tensor has a tied head.

  Raises:
    ValueError: If the architecture is not covered or a key is missing.
  """
  family = file.metadata.get("general.architecture")
  if family not in _FAMILIES:
    raise ValueError(
      f"general.architecture must be one of {', '.join(_FAMILIES)}; {file.path} "
      f"says {family!r}; use a dense Qwen2.5, Qwen3 or Llama 3 model."
    )
  key = functools.partial(_required, file)
  scaling = file.metadata.get(f"{family}.rope.scaling.type", "none")
  if scaling != "none":
    raise ValueError(
      f"{family}.rope.scaling.type must be 'none', {file.path} says "
      f"{scaling!r}; use a file without a stretched context."
    )
  embedding = file.tensors.get("token_embd.weight")
  if embedding is None:
    raise ValueError(f"tensor token_embd.weight is missing in {file.path}.")
  width = key(f"{family}.embedding_length")
  num_heads = key(f"{family}.attention.head_count")
  optional = file.metadata.get
  config = presets.DecoderConfig(
    family=family,
    vocab_size=_shape(embedding)[0],
    width=width,
    num_layers=key(f"{family}.block_count"),
    num_heads=num_heads,
    num_kv_heads=optional(f"{family}.attention.head_count_kv", num_heads),
    head_dim=optional(f"{family}.attention.key_length", width // num_heads),
    ffn_width=key(f"{family}.feed_forward_length"),
    rope_theta=float(optional(f"{family}.rope.freq_base", 10_000.0)),
    # The file holds a float32; 1e-6 shall come back as 1e-6.
    norm_eps=float(f"{key(f'{family}.attention.layer_norm_rms_epsilon'):.6g}"),
    has_qkv_bias=family == "qwen2",
    has_qk_norm=family == "qwen3",
    is_tied="output.weight" not in file.tensors,
    max_positions=key(f"{family}.context_length"),
  )
  return config._replace(rope_scaling=_rope_scaling(file, config))


def _required(file: GgufFile, key: str) -> Any:
  if key not in file.metadata:
    raise ValueError(f"metadata {key} is missing in {file.path}.")
  return file.metadata[key]


def _shape(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
  """Returns the row-major shape; the file states it backwards."""
  return tuple(int(size) for size in tensor.shape[::-1])


def _rope_scaling(
  file: GgufFile, config: presets.DecoderConfig
) -> presets.RopeScaling | None:
  """Recognises Llama 3's scaling in the tensor of frequency divisors."""
  if _ROPE_TENSOR not in file.tensors:
    return None
  divisors = _dequantise(file.tensors[_ROPE_TENSOR], slice(None))
  base = decoder.rope_frequencies(config.head_dim, config.rope_theta, None)
  # The lowest frequency is divided by the whole factor.
  factor = round(float(divisors.max()), 4)
  for original in _ORIGINAL_MAX_POSITIONS:
    scaling = presets.RopeScaling(
      factor, _LOW_FREQ_FACTOR, _HIGH_FREQ_FACTOR, original
    )
    scaled = decoder.rope_frequencies(
      config.head_dim, config.rope_theta, scaling
    )
    if divisors.shape == base.shape and np.allclose(
      base / scaled, divisors, rtol=1e-4
    ):
      return scaling
  raise ValueError(
    f"tensor {_ROPE_TENSOR} in {file.path} must be Llama 3's scaling with "
    f"factors {_LOW_FREQ_FACTOR:g} and {_HIGH_FREQ_FACTOR:g}; this variant is "
    "not covered."
  )


def reader(file: GgufFile, config: presets.DecoderConfig) -> layout.Reader:
  """Checks every tensor against the config.

  Args:
    file: A parsed file.
    config: Its `read_config`.

  Returns:
    Reads and dequantises a slice of one tensor, in Hugging Face's order.

  Raises:
    ValueError: If a tensor is missing, of a wrong shape or kind, or not
      expected.
  """
  expected = list(layout.stored(config))
  for tensor in expected:
    if tensor.gguf_name not in file.tensors:
      raise ValueError(
        f"tensor {tensor.gguf_name} is missing in {file.path}; download the "
        "file again."
      )
    _check_tensor(tensor, file)
  names = {tensor.gguf_name for tensor in expected} | {_ROPE_TENSOR}
  if extra := sorted(set(file.tensors) - names):
    raise ValueError(
      f"tensor {extra[0]} in {file.path} is not expected ({len(extra)} such); "
      "this variant is not covered."
    )
  orders = {}
  if config.family == "llama":
    orders["q_proj"] = _row_order(config.num_heads, config.head_dim)
    orders["k_proj"] = _row_order(config.num_kv_heads, config.head_dim)

  def read(tensor: layout.Tensor, index: layout.Index) -> np.ndarray:
    order = orders.get(tensor.path[-2])
    rows = index[0] if order is None else order[index[0]]
    return _dequantise(file.tensors[tensor.gguf_name], rows)[
      (slice(None), *index[1:])
    ]

  return read


def _check_tensor(tensor: layout.Tensor, file: GgufFile) -> None:
  found = file.tensors[tensor.gguf_name]
  if _shape(found) != tensor.shape:
    raise ValueError(
      f"tensor {tensor.gguf_name} in {file.path} must have shape "
      f"{tensor.shape} by its metadata, got {_shape(found)}."
    )
  try:
    _dequantise(found, slice(0, 1))
  except NotImplementedError:
    raise ValueError(
      f"tensor {tensor.gguf_name} in {file.path} is quantised as "
      f"{found.tensor_type.name}, which the gguf package cannot undo; use a "
      "Q8_0 or F16 file."
    ) from None


def _dequantise(
  tensor: gguf.ReaderTensor, rows: slice | np.ndarray
) -> np.ndarray:
  """Returns rows of a tensor as float32."""
  return np.asarray(quants.dequantize(tensor.data[rows], tensor.tensor_type))


def _row_order(num_heads: int, head_dim: int) -> np.ndarray:
  """Returns, for each row of Hugging Face's q or k, its row in the file.

  The file pairs neighbouring rows of a head for the rotation, the decoder
  pairs row i with row i + head_dim / 2.
  """
  rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
  return rows.swapaxes(1, 2).reshape(-1)


def token_fields(file: GgufFile) -> dict[str, int]:
  """Returns the special ids under the names of Hugging Face's config.

  `bos_token_id` only stands if the file puts it before a text.
  """
  fields = {}
  if adds_bos(file):
    fields["bos_token_id"] = file.metadata["tokenizer.ggml.bos_token_id"]
  for name, key in (("eos_token_id", "eos"), ("pad_token_id", "padding")):
    value = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    if value is not None:
      fields[name] = value
  return fields


def adds_bos(file: GgufFile) -> bool:
  """Whether a text starts with the beginning token; llama's default is yes."""
  default = file.metadata.get("general.architecture") == "llama"
  return "tokenizer.ggml.bos_token_id" in file.metadata and bool(
    file.metadata.get("tokenizer.ggml.add_bos_token", default)
  )


def stop_ids(file: GgufFile) -> tuple[int, ...]:
  """Returns the ids of the end tokens.

  Args:
    file: A parsed file.

  Returns:
    The ids that the metadata names as end of text, turn or message, then
    those control tokens whose text is a known end.

  Raises:
    ValueError: If there is none.
  """
  named = [
    file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    for key in ("eos", "eot", "eom")
  ]
  kinds = file.metadata.get("tokenizer.ggml.token_type", ())
  tokens = file.metadata.get("tokenizer.ggml.tokens", ())
  known = [
    index
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
    if kind == CONTROL and token in _END_TOKENS
  ]
  ids = [index for index in named if index is not None] + known
  if not ids:
    raise ValueError(
      f"metadata tokenizer.ggml.eos_token_id is missing in {file.path}."
    )
  return tuple(dict.fromkeys(ids))
