"""Hugging Face folders in and out."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import transformers

from toolrl_jax.model import (
  decoder,
  layout,
  presets,
  safetensors_files,
  weights,
)
from toolrl_jax.model import tokenizer as tokenizer_lib

NAMES = ("tiny-qwen2", "tiny-qwen3", "tiny-llama")


def random_params(config, dtype=np.float32, seed=0):
  """Parameters that differ everywhere, biases and norms too."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), dtype),
    decoder.param_shapes(config),
  )


def header(path):
  with safetensors.safe_open(path, "np") as file:
    return {
      name: (
        file.get_slice(name).get_shape(),
        file.get_slice(name).get_dtype(),
      )
      for name in file.keys()  # noqa: SIM118
    }


@pytest.mark.quick
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_shard_bytes", [10**9, 20_000])
def test_save_then_load_is_bit_equal(
  name, max_shard_bytes, tmp_path, same_params
):
  config = presets.lookup(name)
  params = random_params(config)
  weights.save(
    tmp_path / "out", config, params, max_shard_bytes=max_shard_bytes
  )
  files = sorted(path.name for path in tmp_path.joinpath("out").iterdir())
  if max_shard_bytes == 10**9:
    assert files == ["config.json", "model.safetensors"]
  else:
    assert "model.safetensors.index.json" in files
    assert sum(name.startswith("model-000") for name in files) > 3
  found_config, found = weights.load(tmp_path / "out")
  assert found_config == config
  same_params(found, params)


def test_save_bfloat16_is_bit_equal(tmp_path, same_params):
  config = presets.lookup("tiny-qwen3")
  params = random_params(config, jnp.bfloat16)
  weights.save(tmp_path / "out", config, params)
  saved = header(tmp_path / "out" / "model.safetensors")
  assert {dtype for _, dtype in saved.values()} == {"BF16"}
  fields = json.loads((tmp_path / "out" / "config.json").read_text())
  assert fields["dtype"] == fields["torch_dtype"] == "bfloat16"
  same_params(weights.load(tmp_path / "out", dtype=jnp.bfloat16)[1], params)


@pytest.mark.parametrize(
  "case", ["qwen2_untied", "qwen3_tied", "llama_tied", "llama_untied"]
)
def test_save_writes_the_tensors_of_transformers(case, root_dir, tmp_path):
  golden = root_dir / "tests" / "golden" / "logits" / case
  config, params = weights.load(golden)
  weights.save(tmp_path / "out", config, params, tokenizer_from=None)
  ours = tmp_path / "out" / "model.safetensors"
  theirs = golden / "model.safetensors"
  assert header(ours) == header(theirs)
  with (
    safetensors.safe_open(ours, "np") as a,
    safetensors.safe_open(theirs, "np") as b,
  ):
    assert a.metadata() == b.metadata() == {"format": "pt"}
    for name in b.keys():  # noqa: SIM118
      np.testing.assert_array_equal(a.get_tensor(name), b.get_tensor(name))


def test_save_config_equals_that_of_transformers(root_dir, tmp_path):
  for case in ("qwen2_tied", "qwen3_tied", "llama_untied"):
    golden = root_dir / "tests" / "golden" / "logits" / case
    config, params = weights.load(golden)
    weights.save(tmp_path / case, config, params)
    ours = transformers.AutoConfig.from_pretrained(tmp_path / case).to_dict()
    theirs = transformers.AutoConfig.from_pretrained(golden).to_dict()
    # The golden models name an end token, a bare export of weights none; the
    # optional copies of a field that old readers need may stand beside it.
    theirs["eos_token_id"] = None
    theirs.pop("_name_or_path"), ours.pop("_name_or_path")
    assert {key: ours[key] for key in theirs} == theirs


def test_save_copies_tokenizer_and_end_tokens(tokenizer_dir, tmp_path):
  source = tmp_path / "source"
  shutil.copytree(tokenizer_dir, source)
  (source / "generation_config.json").write_text(
    json.dumps({"eos_token_id": [5, 7], "top_p": 0.8, "pad_token_id": 0})
  )
  config = presets.lookup("tiny-qwen2")
  weights.save(
    tmp_path / "out", config, random_params(config), tokenizer_from=source
  )
  generation = json.loads(
    (tmp_path / "out" / "generation_config.json").read_text()
  )
  # <|im_end|> is token 2 of the tokenizer.
  assert generation == {
    "eos_token_id": [5, 7, 2],
    "pad_token_id": 0,
    "top_p": 0.8,
  }
  assert weights.stop_ids(tmp_path / "out") == (5, 7, 2)
  fields = json.loads((tmp_path / "out" / "config.json").read_text())
  assert fields["eos_token_id"] == [5, 7, 2]
  assert fields["bos_token_id"] is None
  messages = [{"role": "user", "content": "the weather"}]
  for name in ("tokenizer.json", "chat_template.jinja"):
    assert (tmp_path / "out" / name).read_bytes() == (
      (source / name).read_bytes()
    )
  before = tokenizer_lib.load(source)
  after = transformers.AutoTokenizer.from_pretrained(
    tmp_path / "out", local_files_only=True
  )
  for tokenizer in (before, tokenizer_lib.load(tmp_path / "out"), after):
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
      "<|im_start|>user\nthe weather<|im_end|>\n"
    )
    assert tokenizer.eos_token == "<|im_end|>"


def test_stop_ids_reads_each_place(tokenizer_dir, tmp_path):
  assert weights.stop_ids(tokenizer_dir) == (2,)
  folder = tmp_path / "folder"
  shutil.copytree(tokenizer_dir, folder)
  (folder / "config.json").write_text(json.dumps({"eos_token_id": 9}))
  assert weights.stop_ids(folder) == (9, 2)
  (folder / "generation_config.json").write_text(
    json.dumps({"eos_token_id": [2, 0]})
  )
  assert weights.stop_ids(folder) == (2, 0)
  fields = json.loads((folder / "tokenizer_config.json").read_text())
  fields.pop("eos_token")
  (folder / "tokenizer_config.json").write_text(json.dumps(fields))
  assert weights.stop_ids(folder) == (2, 0)
  (folder / "generation_config.json").unlink()
  (folder / "config.json").unlink()
  with pytest.raises(ValueError, match="names no end token"):
    weights.stop_ids(folder)


def test_save_replaces_a_checkpoint_and_nothing_else(tmp_path, same_params):
  config = presets.lookup("tiny-qwen2")
  old, new = random_params(config), random_params(config, seed=1)
  weights.save(tmp_path / "out", config, old)
  weights.save(tmp_path / "out", config, new)
  same_params(weights.load(tmp_path / "out")[1], new)
  (tmp_path / "notes").mkdir()
  (tmp_path / "notes" / "diary.txt").write_text("mine")
  with pytest.raises(ValueError, match="is no exported checkpoint"):
    weights.save(tmp_path / "notes", config, new)
  assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "out"]


def test_save_refuses_to_delete_what_an_export_does_not_write(tmp_path):
  config = presets.lookup("tiny-qwen2")
  (tmp_path / "config.json").write_text('{"my": "app"}')
  (tmp_path / "thesis.txt").write_text("mine")
  with pytest.raises(ValueError, match=r"holds thesis\.txt, which an export"):
    weights.save(tmp_path, config, random_params(config))
  assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_save_goes_on_from_what_a_killed_save_left(tmp_path, same_params):
  config = presets.lookup("tiny-qwen2")
  old, new = random_params(config), random_params(config, seed=1)
  out, left = tmp_path / "out", tmp_path / ".out.old"
  # Killed after the second rename, then between the two.
  for leave in (lambda: shutil.copytree(out, left), lambda: out.rename(left)):
    weights.save(out, config, old)
    leave()
    weights.save(out, config, new)
    same_params(weights.load(out)[1], new)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_save_follows_a_link(tmp_path, same_params):
  config = presets.lookup("tiny-qwen2")
  old, new = random_params(config), random_params(config, seed=1)
  weights.save(tmp_path / "out", config, old)
  (tmp_path / "link").symlink_to(tmp_path / "out")
  weights.save(tmp_path / "link", config, new)
  assert (tmp_path / "link").is_symlink()
  same_params(weights.load(tmp_path / "out")[1], new)


def test_save_leaves_nothing_when_it_fails(tmp_path):
  config = presets.lookup("tiny-qwen2")
  params = random_params(config)
  with pytest.raises(ValueError, match="no checkpoint at"):
    weights.save(
      tmp_path / "out", config, params, tokenizer_from=tmp_path / "absent"
    )
  with pytest.raises(ValueError, match="layers/k_norm/scale is missing"):
    weights.save(tmp_path / "out", presets.lookup("tiny-qwen3"), params)
  with pytest.raises(ValueError, match="embed/table must have shape"):
    weights.save(tmp_path / "out", config._replace(vocab_size=64), params)
  assert list(tmp_path.iterdir()) == []


def test_load_reads_only_the_shards(tmp_path, same_params):
  config = presets.lookup("tiny-llama")
  params = random_params(config)
  weights.save(tmp_path / "out", config, params)
  mesh = jax.make_mesh(
    (2, 2, 2),
    ("data", "fsdp", "tensor"),
    axis_types=(jax.sharding.AxisType.Auto,) * 3,
  )

  def sharding(leaf):
    spec = {
      1: jax.P("tensor"),
      2: jax.P(None, "tensor"),
      3: jax.P("fsdp", None, "tensor"),
    }[len(leaf.shape)]
    return jax.sharding.NamedSharding(mesh, spec)

  shardings = jax.tree.map(sharding, decoder.param_shapes(config))
  _, found = weights.load(
    tmp_path / "out",
    shardings=lambda config: jax.tree.map(
      sharding, decoder.param_shapes(config)
    ),
  )
  same_params(found, params)
  assert jax.tree.map(lambda leaf: leaf.sharding, found) == shardings
  read = safetensors_files.reader(tmp_path / "out", config)
  sizes = []

  def counted(tensor, index):
    piece = read(tensor, index)
    sizes.append((tensor.hf_name, piece.size))
    return piece

  layout.assemble(config, counted, dtype=np.float32, shardings=shardings)
  # Each element is read once, though two replicas hold it.
  total = sum(size for _, size in sizes)
  assert total == layout.num_params(config)
  largest = {size for name, size in sizes if "gate_proj" in name}
  assert largest == {config.width * config.ffn_width // 2}


@pytest.fixture
def folder(tmp_path):
  config = presets.lookup("tiny-qwen2")
  weights.save(tmp_path / "model", config, random_params(config))
  return tmp_path / "model"


def rewrite(folder, change):
  """Writes the folder's tensors again after `change` of the mapping."""
  path = folder / "model.safetensors"
  with safetensors.safe_open(path, "np") as file:
    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
  change(tensors)
  safetensors.numpy.save_file(tensors, path)


def one_line(folder, *words):
  """Asserts that loading fails with one line that holds the words."""
  with pytest.raises(ValueError) as caught:
    weights.load(folder)
  for word in (str(folder), *words):
    assert word in str(caught.value)
  assert "\n" not in str(caught.value)


Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def test_load_names_the_missing_tensor(folder):
  rewrite(folder, lambda tensors: tensors.pop(Q_PROJ))
  one_line(folder, Q_PROJ, "is missing", "26 tensors")


def test_load_names_the_wrong_shape(folder):
  rewrite(
    folder, lambda tensors: tensors.update({Q_PROJ: np.zeros((32, 16), "f4")})
  )
  one_line(folder, Q_PROJ, "(32, 32)", "(32, 16)", "model.safetensors")


def test_load_names_the_wrong_dtype(folder):
  rewrite(
    folder, lambda tensors: tensors.update({Q_PROJ: np.zeros((32, 32), "i1")})
  )
  one_line(folder, Q_PROJ, "I8")


def test_load_names_the_unexpected_tensor(folder):
  extra = "model.layers.0.self_attn.o_proj.bias"
  rewrite(folder, lambda tensors: tensors.update({extra: np.zeros(32, "f4")}))
  one_line(folder, extra, "is not expected")


def test_load_takes_harmless_extras(folder, same_params):
  _, params = weights.load(folder)
  rewrite(
    folder,
    lambda tensors: tensors.update(
      {
        "lm_head.weight": np.zeros((128, 32), "f4"),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, "f4"),
      }
    ),
  )
  same_params(weights.load(folder)[1], params)


def test_load_names_the_cut_file(folder):
  path = folder / "model.safetensors"
  content = path.read_bytes()
  path.write_bytes(content[:-200])
  one_line(folder, "model.safetensors", "cut short", "tensor model.")
  path.write_bytes(content[:100])
  one_line(folder, "model.safetensors", "no whole safetensors file")
  path.write_bytes(b"")
  one_line(folder, "model.safetensors", "no whole safetensors file")


def test_load_names_the_missing_file(folder):
  (folder / "model.safetensors").unlink()
  one_line(folder, "neither model.safetensors nor")
  (folder / "config.json").unlink()
  one_line(folder, "config.json is missing")
  with pytest.raises(ValueError, match="no checkpoint at"):
    weights.load(folder / "nowhere")


def test_load_names_the_unknown_architecture(folder):
  fields = json.loads((folder / "config.json").read_text())
  fields |= {"model_type": "gemma", "architectures": ["GemmaForCausalLM"]}
  (folder / "config.json").write_text(json.dumps(fields))
  one_line(folder, "GemmaForCausalLM")
  (folder / "config.json").write_text("{")
  one_line(folder, "config.json is not readable JSON")


def test_load_names_the_fault_of_an_index(tmp_path):
  config = presets.lookup("tiny-qwen2")
  folder = tmp_path / "model"
  weights.save(folder, config, random_params(config), max_shard_bytes=20_000)
  path = folder / "model.safetensors.index.json"
  index = json.loads(path.read_text())
  weight_map = index["weight_map"]

  def change(**changed):
    path.write_text(json.dumps(index | changed))

  moved = weight_map | {Q_PROJ: weight_map["model.embed_tokens.weight"]}
  change(weight_map=moved)
  one_line(folder, Q_PROJ, "is missing in", moved[Q_PROJ])
  change(weight_map=weight_map | {Q_PROJ: "../other.safetensors"})
  one_line(folder, Q_PROJ, "files of its own folder")
  change(weight_map={})
  one_line(folder, "has no weight_map")
  change()
  (folder / weight_map[Q_PROJ]).unlink()
  one_line(folder, weight_map[Q_PROJ], "is missing", "places tensor model.")
  path.write_text("[]")
  one_line(folder, "must hold a JSON object")
