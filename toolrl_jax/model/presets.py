"""Architectures the decoder covers, by their Hugging Face hyperparameters.

From a preset's name or the mapping in a `config.json` to a `DecoderConfig` and
back. Knows nothing of files, tensors or tokenizers.
"""

import difflib
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple


class RopeScaling(NamedTuple):
  """Llama 3's frequency scaling.

  Attributes:
    factor: Divisor of the low frequencies.
    low_freq_factor: Wavelengths above `original_max_positions /
      low_freq_factor` are divided by `factor`.
    high_freq_factor: Wavelengths below `original_max_positions /
      high_freq_factor` stay; those between are blended.
    original_max_positions: Context length of the pre-training, in tokens.
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_positions: int


class DecoderConfig(NamedTuple):
  """Shape and flags of one decoder; hashable, so a static jit argument.

  Attributes:
    family: Which Hugging Face architecture the names and files follow.
    vocab_size: Rows of the embedding (V).
    width: Hidden size (D).
    num_layers: Layers (L).
    num_heads: Query heads.
    num_kv_heads: Key and value heads; divides `num_heads`.
    head_dim: Size of one head.
    ffn_width: Hidden size of the gated feed-forward block.
    rope_theta: Base of the rotary frequencies.
    rope_scaling: Llama 3's scaling, or None.
    norm_eps: Added to the mean square in RMSNorm.
    has_qkv_bias: Qwen2.5's bias on q, k and v.
    has_qk_norm: Qwen3's RMSNorm on each query and key head.
    is_tied: The output head is the embedding.
    max_positions: Longest context the weights were made for, in tokens.
  """

  family: Literal["qwen2", "qwen3", "llama"]
  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  ffn_width: int
  rope_theta: float = 1_000_000.0
  rope_scaling: RopeScaling | None = None
  norm_eps: float = 1e-6
  has_qkv_bias: bool = False
  has_qk_norm: bool = False
  is_tied: bool = True
  max_positions: int = 32_768


_QWEN25 = DecoderConfig(
  family="qwen2",
  vocab_size=151_936,
  width=896,
  num_layers=24,
  num_heads=14,
  num_kv_heads=2,
  head_dim=64,
  ffn_width=4864,
  has_qkv_bias=True,
)

_QWEN3 = DecoderConfig(
  family="qwen3",
  vocab_size=151_936,
  width=1024,
  num_layers=28,
  num_heads=16,
  num_kv_heads=8,
  head_dim=128,
  ffn_width=3072,
  has_qk_norm=True,
  max_positions=40_960,
)

_LLAMA3 = DecoderConfig(
  family="llama",
  vocab_size=128_256,
  width=2048,
  num_layers=16,
  num_heads=32,
  num_kv_heads=8,
  head_dim=64,
  ffn_width=8192,
  rope_theta=500_000.0,
  rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192),
  norm_eps=1e-5,
  max_positions=131_072,
)

# The numbers of the `config.json` that was released with each instruct model.
PRESETS: Mapping[str, DecoderConfig] = {
  "qwen2.5-0.5b": _QWEN25,
  "qwen2.5-1.5b": _QWEN25._replace(
    width=1536, num_layers=28, num_heads=12, head_dim=128, ffn_width=8960
  ),
  "qwen2.5-3b": _QWEN25._replace(
    width=2048, num_layers=36, num_heads=16, head_dim=128, ffn_width=11_008
  ),
  "qwen2.5-7b": _QWEN25._replace(
    vocab_size=152_064,
    width=3584,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    ffn_width=18_944,
    is_tied=False,
  ),
  "qwen3-0.6b": _QWEN3,
  "qwen3-1.7b": _QWEN3._replace(width=2048, ffn_width=6144),
  "qwen3-4b": _QWEN3._replace(
    width=2560, num_layers=36, num_heads=32, ffn_width=9728
  ),
  "qwen3-8b": _QWEN3._replace(
    width=4096, num_layers=36, num_heads=32, ffn_width=12_288, is_tied=False
  ),
  "llama-3.2-1b": _LLAMA3,
  "llama-3.2-3b": _LLAMA3._replace(
    width=3072, num_layers=28, num_heads=24, head_dim=128
  ),
  "llama-3.1-8b": _LLAMA3._replace(
    width=4096,
    num_layers=32,
    head_dim=128,
    ffn_width=14_336,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
    is_tied=False,
  ),
  # Small enough to train on a laptop.
  "tiny": _QWEN25._replace(
    vocab_size=1024,
    width=128,
    num_layers=4,
    num_heads=4,
    head_dim=32,
    ffn_width=512,
    rope_theta=10_000.0,
    max_positions=2048,
  ),
  # One of each family, for tests.
  "tiny-qwen2": _QWEN25._replace(
    vocab_size=128,
    width=32,
    num_layers=2,
    num_heads=4,
    head_dim=8,
    ffn_width=64,
    max_positions=512,
  ),
  "tiny-qwen3": _QWEN3._replace(
    vocab_size=128,
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    ffn_width=64,
    head_dim=16,
    max_positions=512,
  ),
  "tiny-llama": _LLAMA3._replace(
    vocab_size=128,
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_width=64,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32),
    is_tied=False,
    max_positions=512,
  ),
}

_ARCHITECTURES = {
  "qwen2": "Qwen2ForCausalLM",
  "qwen3": "Qwen3ForCausalLM",
  "llama": "LlamaForCausalLM",
}

# Fields that change the computation, with the only value the decoder covers.
_FIXED = {
  "hidden_act": "silu",
  "attention_bias": False,
  "mlp_bias": False,
  "use_sliding_window": False,
  "quantization_config": None,
  "partial_rotary_factor": 1.0,
}

_REQUIRED = (
  "vocab_size",
  "hidden_size",
  "num_hidden_layers",
  "num_attention_heads",
  "intermediate_size",
  "max_position_embeddings",
)
_MOST = 2**31 - 1
_MOST_LAYERS = 10_000
_ROPE_REQUIRED = (
  "factor",
  "low_freq_factor",
  "high_freq_factor",
  "original_max_position_embeddings",
)


def lookup(name: str) -> DecoderConfig:
  """Returns the preset of that name.

  Args:
    name: One of `PRESETS`, in any case.

  Returns:
    The shape of that model.

  Raises:
    ValueError: If there is no such preset; names the nearest.
  """
  key = name.lower()
  if key in PRESETS:
    return PRESETS[key]
  nearest = difflib.get_close_matches(key, PRESETS, n=1, cutoff=0.0)[0]
  raise ValueError(
    f"model preset must be one of {', '.join(PRESETS)}; got {name!r}; did you "
    f"mean {nearest!r}?"
  )


def from_hf_config(hf_config: Mapping[str, Any]) -> DecoderConfig:
  """Reads a Hugging Face `config.json`.

  Both forms of the rotary fields are read: `rope_theta` with `rope_scaling`,
  and the newer `rope_parameters`.

  Args:
    hf_config: The mapping in the file.

  Returns:
    The shape of the model.

  Raises:
    ValueError: If the architecture, or a setting of it, is not covered, or a
      field is missing.
  """
  family = hf_config.get("model_type")
  if family not in _ARCHITECTURES:
    named = hf_config.get("architectures") or [family]
    raise ValueError(
      f"architecture must be one of {', '.join(_ARCHITECTURES.values())}; the "
      f"config says {named[0]!r}; use a dense Qwen2.5, Qwen3 or Llama 3 model."
    )
  for field, covered in _FIXED.items():
    if (value := hf_config.get(field, covered)) not in (covered, None):
      raise ValueError(
        f"{field} must be {covered!r}, the config says {value!r}; this variant "
        f"of {family} is not covered."
      )
  missing = [key for key in _REQUIRED if hf_config.get(key) is None]
  if missing:
    raise ValueError(f"the model's config lacks {', '.join(missing)}.")
  _check_sizes(hf_config)
  theta, scaling = _rope(hf_config)
  if not 0 < theta < math.inf:
    raise ValueError(
      f"rope_theta must be a positive number, the config says {theta}; mend "
      "its config.json."
    )
  num_heads = hf_config["num_attention_heads"]
  return DecoderConfig(
    family=family,
    vocab_size=hf_config["vocab_size"],
    width=hf_config["hidden_size"],
    num_layers=hf_config["num_hidden_layers"],
    num_heads=num_heads,
    num_kv_heads=hf_config.get("num_key_value_heads") or num_heads,
    head_dim=hf_config.get("head_dim") or _default_head_dim(hf_config),
    ffn_width=hf_config["intermediate_size"],
    rope_theta=theta,
    rope_scaling=scaling,
    norm_eps=hf_config.get("rms_norm_eps", 1e-6),
    has_qkv_bias=family == "qwen2",
    has_qk_norm=family == "qwen3",
    is_tied=bool(hf_config.get("tie_word_embeddings", False)),
    max_positions=hf_config["max_position_embeddings"],
  )


def _check_sizes(hf_config: Mapping[str, Any]) -> None:
  """Refuses sizes that no model has."""
  for name in (*_REQUIRED, "num_key_value_heads", "head_dim"):
    value = hf_config.get(name)
    most = _MOST_LAYERS if name == "num_hidden_layers" else _MOST
    if value is not None and not (type(value) is int and 1 <= value <= most):
      raise ValueError(
        f"{name} must be a whole number in [1, {most}], the config says "
        f"{str(value)[:40]!r}; mend its config.json."
      )


def _default_head_dim(hf_config: Mapping[str, Any]) -> int:
  """Returns the head size that the architecture takes when none is stated."""
  if hf_config["model_type"] == "qwen3":
    return 128
  return hf_config["hidden_size"] // hf_config["num_attention_heads"]


def _rope(hf_config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
  """Returns the rotary base and the scaling of either form."""
  fields = dict(hf_config.get("rope_scaling") or {})
  fields |= hf_config.get("rope_parameters") or {}
  theta = fields.get("rope_theta", hf_config.get("rope_theta", 10_000.0))
  kind = fields.get("rope_type", fields.get("type", "default"))
  if kind == "default":
    return float(theta), None
  if kind != "llama3":
    raise ValueError(
      f"rope_type must be 'default' or 'llama3', the config says {kind!r}; "
      "remove its rope_scaling to run within the original context."
    )
  missing = [key for key in _ROPE_REQUIRED if key not in fields]
  if missing:
    raise ValueError(f"the config's rope scaling lacks {', '.join(missing)}.")
  return float(theta), RopeScaling(
    factor=float(fields["factor"]),
    low_freq_factor=float(fields["low_freq_factor"]),
    high_freq_factor=float(fields["high_freq_factor"]),
    original_max_positions=int(fields["original_max_position_embeddings"]),
  )


def to_hf_config(config: DecoderConfig, dtype: str) -> dict[str, Any]:
  """Writes a Hugging Face `config.json`, the inverse of `from_hf_config`.

  Args:
    config: Shape of the model.
    dtype: Name of the dtype of the saved tensors, as in "bfloat16".

  Returns:
    The mapping for the file, in the form that old and new readers know.
  """
  hf_config: dict[str, Any] = {
    "architectures": [_ARCHITECTURES[config.family]],
    "attention_dropout": 0.0,
    "dtype": dtype,
    "hidden_act": "silu",
    "hidden_size": config.width,
    "initializer_range": 0.02,
    "intermediate_size": config.ffn_width,
    "max_position_embeddings": config.max_positions,
    "model_type": config.family,
    "num_attention_heads": config.num_heads,
    "num_hidden_layers": config.num_layers,
    "num_key_value_heads": config.num_kv_heads,
    "rms_norm_eps": config.norm_eps,
    "rope_scaling": None,
    "rope_theta": config.rope_theta,
    "tie_word_embeddings": config.is_tied,
    "torch_dtype": dtype,
    "use_cache": True,
    "vocab_size": config.vocab_size,
  }
  # Readers of Qwen2.5 derive the head size from the width.
  if config.family != "qwen2" or (
    config.head_dim * config.num_heads != config.width
  ):
    hf_config["head_dim"] = config.head_dim
  if config.family == "qwen2":
    hf_config["use_sliding_window"] = False
  else:
    hf_config["attention_bias"] = False
  if config.rope_scaling is not None:
    factor, low, high, original = config.rope_scaling
    hf_config["rope_scaling"] = {
      "factor": factor,
      "high_freq_factor": high,
      "low_freq_factor": low,
      "original_max_position_embeddings": original,
      "rope_type": "llama3",
    }
  return hf_config
