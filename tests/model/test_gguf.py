"""GGUF files made here, read back and compared with the weights they hold."""

import dataclasses
import json

import gguf as gguf_lib
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from gguf import GGMLQuantizationType as Quant
from gguf import quants

from toolrl_jax.model import (
  decoder,
  gguf,
  layout,
  presets,
  safetensors_files,
  tokenizer,
  weights,
)

FULL = (slice(None), slice(None))


@dataclasses.dataclass
class Spec:
  """What a test file holds; `quant` by the end of the module's name."""

  config: presets.DecoderConfig
  quant: dict[str, Quant] = dataclasses.field(default_factory=dict)
  metadata: dict = dataclasses.field(default_factory=dict)
  skip: tuple[str, ...] = ()
  extra: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def permuted(rows, num_heads):
  """Llama's q and k as llama.cpp stores them: pairs become neighbours."""
  shape = (num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
  return rows.reshape(shape).swapaxes(1, 2).reshape(rows.shape)


def k_quant_bytes(rng, shape, kind):
  """Random blocks of Q4_K or Q6_K with small finite scales."""
  block, size = gguf_lib.GGML_QUANT_SIZES[kind]
  count = shape[0] * shape[1] // block
  blocks = rng.integers(0, 256, (count, size), np.uint8)
  scales = rng.uniform(0.001, 0.01, (count, 2)).astype(np.float16)
  if kind == Quant.Q4_K:
    blocks[:, :4] = scales.view(np.uint8)
  else:
    blocks[:, -2:] = scales[:, :1].copy().view(np.uint8)
  return blocks.reshape(shape[0], -1)


def write(path, spec, tensors):
  """Writes `tensors` (Hugging Face order) and returns what they dequantise to.

  Args:
    path: File to write.
    spec: Shape, kinds and faults of the file.
    tensors: Float32 arrays by Hugging Face name.

  Returns:
    Float32 arrays by Hugging Face name.
  """
  config = spec.config
  rng = np.random.default_rng(1)
  writer = gguf_lib.GGUFWriter(path, config.family)
  writer.add_block_count(config.num_layers)
  writer.add_context_length(config.max_positions)
  writer.add_embedding_length(config.width)
  writer.add_feed_forward_length(config.ffn_width)
  writer.add_head_count(config.num_heads)
  writer.add_head_count_kv(config.num_kv_heads)
  writer.add_rope_freq_base(config.rope_theta)
  writer.add_layer_norm_rms_eps(config.norm_eps)
  if config.head_dim * config.num_heads != config.width:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
  for key, value in spec.metadata.items():
    add = {
      str: writer.add_string,
      bool: writer.add_bool,
      int: writer.add_uint32,
      list: writer.add_array,
    }[type(value)]
    add(key, value)
  kept = {}
  for tensor in layout.stored(config):
    value = tensors[tensor.hf_name]
    module = tensor.gguf_name.split(".")[-2]
    kind = spec.quant.get(module, Quant.F32)
    if tensor.path[-1] in ("bias", "scale"):
      kind = Quant.F32
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    is_permuted = config.family == "llama" and module in heads
    if kind in (Quant.Q4_K, Quant.Q6_K):
      data = k_quant_bytes(rng, value.shape, kind)
    else:
      data = quants.quantize(value, kind)
    # Rows are quantised on their own, so their order does not matter.
    kept[tensor.hf_name] = quants.dequantize(data, kind)
    if is_permuted:
      data = permuted(data, heads[module])
    if tensor.gguf_name not in spec.skip:
      writer.add_tensor(tensor.gguf_name, data, raw_dtype=kind)
  for name, data in spec.extra.items():
    writer.add_tensor(name, data)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return kept


def random_tensors(config, seed=0):
  rng = np.random.default_rng(seed)
  return {
    tensor.hf_name: rng.normal(size=tensor.shape).astype(np.float32)
    for tensor in layout.stored(config)
  }


def stacked(config, tensors):
  """Parameters out of Hugging Face tensors, by way of plain numpy."""
  params = decoder.param_shapes(config)

  def build(path, leaf):
    keys = tuple(key.key for key in path)
    parts = [
      tensors[part.hf_name].T if part.is_kernel else tensors[part.hf_name]
      for part in layout.stored_of(keys, leaf.shape)
    ]
    return np.stack(parts) if keys[0] == "layers" else parts[0]

  return jax.tree.map_with_path(build, params)


def divisors(config):
  """Llama 3's tensor of frequency divisors, by the formula of its release."""
  factor, low, high, original = config.rope_scaling
  frequencies = config.rope_theta ** (
    -np.arange(0, config.head_dim, 2) / config.head_dim
  )
  values = []
  for wavelength in 2 * np.pi / frequencies:
    smooth = (original / wavelength - low) / (high - low)
    if wavelength < original / high:
      values.append(1.0)
    elif wavelength > original / low:
      values.append(factor)
    else:
      values.append(1 / ((1 - smooth) / factor + smooth))
  return np.array(values, np.float32)


CASES = {
  "float": {},
  "q8_0": dict.fromkeys(
    ("token_embd", "attn_q", "attn_k", "ffn_gate", "output"), Quant.Q8_0
  ),
  "mixed": {
    "attn_q": Quant.Q5_0,
    "attn_v": Quant.Q4_0,
    "ffn_down": Quant.Q6_K,
    "token_embd": Quant.F16,
    "attn_output": Quant.BF16,
  },
  "q4_k": {"ffn_down": Quant.Q4_K, "attn_k": Quant.Q8_0},
}


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["tiny-qwen2", "tiny-qwen3", "tiny-llama"])
def test_load_equals_the_weights_in_the_file(name, case, tmp_path, same_params):
  # Blocks of the k kinds are 256 wide.
  config = presets.lookup(name)._replace(ffn_width=256)
  extra = {}
  if config.rope_scaling is not None:
    extra["rope_freqs.weight"] = divisors(config)
  spec = Spec(config, quant=CASES[case], extra=extra)
  kept = write(tmp_path / "m.gguf", spec, random_tensors(config))
  found_config, found = weights.load(tmp_path / "m.gguf")
  assert found_config == config
  same_params(found, stacked(config, kept))
  # The same weights by way of safetensors.
  weights.save(tmp_path / "hf", found_config, found)
  same_params(weights.load(tmp_path / "hf")[1], found)
  read = safetensors_files.reader(tmp_path / "hf", config)
  for tensor in layout.stored(config):
    np.testing.assert_array_equal(
      read(tensor, FULL[: len(tensor.shape)]), kept[tensor.hf_name]
    )


def test_load_shards_a_permuted_file(tmp_path, same_params):
  config = presets.lookup("tiny-llama")
  spec = Spec(config, extra={"rope_freqs.weight": divisors(config)})
  kept = write(tmp_path / "m.gguf", spec, random_tensors(config))
  mesh = jax.make_mesh(
    (2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  shardings = jax.tree.map(
    lambda leaf: jax.sharding.NamedSharding(
      mesh, jax.P(None, "a", "b") if len(leaf.shape) == 3 else jax.P()
    ),
    decoder.param_shapes(config),
  )
  _, found = weights.load(tmp_path / "m.gguf", shardings=shardings)
  same_params(found, stacked(config, kept))


def test_load_gives_the_golden_logits(root_dir, tmp_path):
  folder = root_dir / "tests" / "golden" / "logits" / "llama_untied"
  config = weights.load_config(folder)
  read = safetensors_files.reader(folder, config)
  tensors = {
    tensor.hf_name: read(tensor, FULL[: len(tensor.shape)])
    for tensor in layout.stored(config)
  }
  spec = Spec(config, extra={"rope_freqs.weight": divisors(config)})
  write(tmp_path / "m.gguf", spec, tensors)
  found_config, params = weights.load(tmp_path / "m.gguf")
  assert found_config == config
  golden = np.load(folder / "logits.npz")
  logits, _, _ = jax.jit(decoder.prefill, static_argnames="config")(
    params,
    jnp.asarray(golden["ids_24"][None]),
    jnp.asarray([24]),
    config=config,
  )
  assert np.abs(np.asarray(logits[0]) - golden["logits_24"][-1]).max() < 2e-4


def test_read_config_knows_the_released_scaling(tmp_path):
  config = presets.lookup("tiny-llama")._replace(
    rope_scaling=presets.RopeScaling(32.0, 1.0, 4.0, 8192), head_dim=64
  )
  spec = Spec(config, extra={"rope_freqs.weight": divisors(config)})
  write(tmp_path / "m.gguf", spec, random_tensors(config))
  assert weights.load_config(tmp_path / "m.gguf") == config


def one_line(path, *words):
  with pytest.raises(ValueError) as caught:
    weights.load(path)
  for word in (str(path), *words):
    assert word in str(caught.value)
  assert "\n" not in str(caught.value)


def test_load_names_the_fault(tmp_path):
  config = presets.lookup("tiny-qwen2")
  tensors = random_tensors(config)
  faults = {
    ("blk.1.ffn_up.weight", "is missing"): {"skip": ("blk.1.ffn_up.weight",)},
    ("token_embd.weight", "is missing"): {"skip": ("token_embd.weight",)},
    ("blk.0.attn_output.bias", "is not expected"): {
      "extra": {"blk.0.attn_output.bias": np.zeros(32, np.float32)}
    },
    ("output.weight", "(128, 32)", "(64, 32)"): {
      "extra": {"output.weight": np.zeros((64, 32), np.float32)}
    },
    ("rope.scaling.type", "'yarn'"): {
      "metadata": {"qwen2.rope.scaling.type": "yarn"}
    },
    ("rope_freqs.weight", "this variant"): {
      "extra": {"rope_freqs.weight": np.array([1, 7, 2, 9], np.float32)}
    },
  }
  for number, (words, fault) in enumerate(faults.items()):
    path = tmp_path / f"{number}.gguf"
    write(path, Spec(config, **fault), tensors)
    one_line(path, *words)


def test_load_names_the_cut_file(tmp_path):
  config = presets.lookup("tiny-qwen2")
  path = tmp_path / "m.gguf"
  write(path, Spec(config), random_tensors(config))
  content = path.read_bytes()
  path.write_bytes(content[:-5000])
  one_line(path, "cut short inside or before tensor blk.1.")
  path.write_bytes(content[:200])
  one_line(path, "no whole GGUF file")
  path.write_bytes(b"no weights")
  one_line(path, "is no GGUF file")
  path.write_bytes(b"")
  one_line(path, "is no GGUF file")


def test_load_names_the_unknown_architecture(tmp_path):
  writer = gguf_lib.GGUFWriter(tmp_path / "m.gguf", "gemma")
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  one_line(tmp_path / "m.gguf", "'gemma'")


# ----- tokenizer -----


def vocabulary(tokenizer_dir, pre):
  """The tokenizer of `tokenizer_dir` as GGUF metadata."""
  fields = json.loads((tokenizer_dir / "tokenizer.json").read_text())
  vocab = fields["model"]["vocab"]
  tokens = sorted(vocab, key=vocab.get)
  special = {token["content"] for token in fields["added_tokens"]}
  # One token of the user's, then filling up to the embedding's rows.
  tokens += ["<tool_call>", "[PAD]"]
  kinds = [3 if token in special else 1 for token in tokens[:-2]] + [4, 5]
  return {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": pre,
    "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.token_type": kinds,
    "tokenizer.ggml.merges": [
      " ".join(merge) for merge in fields["model"]["merges"]
    ],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.chat_template": "{{ messages[0]['content'] }}<|im_end|>",
  }


def write_tokenizer(path, metadata, name="tiny-qwen2"):
  config = presets.lookup(name)._replace(
    vocab_size=len(metadata["tokenizer.ggml.tokens"]), rope_scaling=None
  )
  write(path, Spec(config, metadata=metadata), random_tensors(config))


def test_tokenizer_is_rebuilt_for_qwen(tokenizer_dir, tmp_path):
  metadata = vocabulary(tokenizer_dir, "qwen2")
  metadata["tokenizer.ggml.add_bos_token"] = False
  write_tokenizer(tmp_path / "m.gguf", metadata)
  rebuilt = tokenizer.load(tmp_path / "m.gguf")
  original = tokenizer.load(tokenizer_dir)
  # Words that both pre-tokenizers cut alike.
  for text in ("the weather in the town", " other there", "x<|im_end|>y"):
    assert rebuilt(text)["input_ids"] == original(text)["input_ids"]
  # Digits stand alone for Qwen, though the merges know "12" and "345".
  digits = original.convert_tokens_to_ids(list("12345"))
  assert rebuilt("12345")["input_ids"] == digits
  text = "e\u0301 <tool_call> \U0001f600\n\n  12"
  ids = rebuilt(text)["input_ids"]
  assert len(original) in ids
  assert rebuilt.decode(ids) == text.replace("e\u0301", "é")
  assert rebuilt.decode([len(original), 2], skip_special_tokens=True) == (
    "<tool_call>"
  )
  assert len(rebuilt) == len(original) + 1
  assert (rebuilt.eos_token_id, rebuilt.pad_token_id) == (2, 0)
  assert rebuilt.bos_token is None
  assert rebuilt.apply_chat_template(
    [{"role": "user", "content": "the"}], tokenize=False
  ) == ("the<|im_end|>")
  assert weights.stop_ids(tmp_path / "m.gguf") == (2, 0)


def test_tokenizer_is_rebuilt_for_llama(tokenizer_dir, tmp_path):
  metadata = vocabulary(tokenizer_dir, "llama-bpe")
  metadata["tokenizer.ggml.eot_token_id"] = 0
  write_tokenizer(tmp_path / "m.gguf", metadata, "tiny-llama")
  rebuilt = tokenizer.load(tmp_path / "m.gguf")
  # The beginning token is <|im_start|> here; digits go in threes.
  pieces = rebuilt.convert_ids_to_tokens(rebuilt("the 12345")["input_ids"])
  assert pieces[:3] == ["<|im_start|>", "the", "Ġ"]
  assert "".join(pieces[3:]) == "12345"
  assert [
    len(piece)
    for piece, _ in rebuilt.backend_tokenizer.pre_tokenizer.pre_tokenize_str(
      "12345"
    )
  ] == [3, 2]
  assert rebuilt.bos_token == "<|im_start|>"
  assert (
    rebuilt("the", add_special_tokens=False)["input_ids"]
    == (tokenizer.load(tokenizer_dir)("the")["input_ids"])
  )
  assert weights.stop_ids(tmp_path / "m.gguf") == (2, 0)


def test_save_writes_the_rebuilt_tokenizer(tokenizer_dir, tmp_path):
  path = tmp_path / "m.gguf"
  write_tokenizer(path, vocabulary(tokenizer_dir, "qwen2"))
  config, params = weights.load(path)
  weights.save(tmp_path / "hf", config, params, tokenizer_from=path)
  before, after = tokenizer.load(path), tokenizer.load(tmp_path / "hf")
  other = transformers.AutoTokenizer.from_pretrained(
    tmp_path / "hf", local_files_only=True
  )
  text = "the <tool_call> 12<|im_end|>"
  assert before(text)["input_ids"] == after(text)["input_ids"]
  assert before(text)["input_ids"] == other(text)["input_ids"]
  fields = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
  assert fields["tokenizer_class"] == "PreTrainedTokenizerFast"
  assert fields["model_max_length"] == config.max_positions
  assert before.chat_template == after.chat_template
  assert weights.stop_ids(tmp_path / "hf") == (2, 0)
  assert after.pad_token_id == 0


def test_tokenizer_names_the_unknown_kind(tokenizer_dir, tmp_path):
  for key, value in (
    ("tokenizer.ggml.model", "llama"),
    ("tokenizer.ggml.pre", "tekken"),
  ):
    metadata = vocabulary(tokenizer_dir, "qwen2") | {key: value}
    path = tmp_path / f"{value}.gguf"
    write_tokenizer(path, metadata)
    with pytest.raises(ValueError, match=f"{key} must be .*{value}"):
      tokenizer.load(path)


def test_stop_ids_needs_an_end_token(tmp_path):
  write(
    tmp_path / "m.gguf",
    Spec(presets.lookup("tiny-qwen2")),
    random_tensors(presets.lookup("tiny-qwen2")),
  )
  with pytest.raises(ValueError, match="eos_token_id is missing"):
    gguf.stop_ids(gguf.open_file(tmp_path / "m.gguf"))
