import math

import jax
import pytest
from jax.sharding import PartitionSpec

from toolrl_jax.model import decoder, presets, sharding

CONFIG = presets.DecoderConfig(
  family="qwen2",
  vocab_size=32,
  width=16,
  num_layers=3,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  ffn_width=24,
  has_qkv_bias=True,
  has_qk_norm=True,
  is_tied=False,
)


def test_make_mesh_minus_one_takes_what_remains():
  mesh = sharding.make_mesh(2, -1, 2, jax.devices()[:8])
  assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
  assert sharding.num_batch_shards(mesh) == 4


@pytest.mark.parametrize(
  "sizes", [(3, 1, 1), (-1, -1, 2), (-1, 3, 1), (0, 1, 8)]
)
def test_make_mesh_rejects_sizes_that_do_not_fit(sizes):
  with pytest.raises(ValueError, match="must equal the number of devices"):
    sharding.make_mesh(*sizes, jax.devices()[:8])


def test_param_specs_by_name():
  mesh = sharding.make_mesh(1, 2, 2, jax.devices()[:4])
  specs = sharding.param_specs(CONFIG, mesh)
  layers = specs["layers"]
  assert specs["embed"]["table"] == PartitionSpec("tensor", "fsdp")
  assert specs["head"]["table"] == PartitionSpec("tensor", "fsdp")
  for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
    assert layers[name]["kernel"] == PartitionSpec(None, "fsdp", "tensor")
  for name in ("o_proj", "down_proj"):
    assert layers[name]["kernel"] == PartitionSpec(None, "tensor", "fsdp")
  assert layers["q_proj"]["bias"] == PartitionSpec(None, "tensor")
  assert layers["q_norm"]["scale"] == PartitionSpec()
  assert specs["final_norm"]["scale"] == PartitionSpec()


def test_param_specs_skip_axes_that_do_not_divide():
  # 4 tensor shards divide 32 kv columns and 24 hidden units, not 2 kv heads.
  mesh = sharding.make_mesh(1, 1, 4, jax.devices()[:4])
  layers = sharding.param_specs(CONFIG, mesh)["layers"]
  assert layers["q_proj"]["kernel"][2] == "tensor"
  assert layers["k_proj"]["kernel"][2] is None
  assert layers["v_proj"]["bias"][1] is None
  # 3 fsdp shards divide neither the width 16 nor the vocabulary 32.
  mesh = sharding.make_mesh(1, 3, 1, jax.devices()[:3])
  specs = sharding.param_specs(CONFIG, mesh)
  assert specs["embed"]["table"] == PartitionSpec("tensor", None)
  assert specs["layers"]["down_proj"]["kernel"][2] is None


def test_param_shardings_cut_every_matrix_into_quarters():
  mesh = sharding.make_mesh(1, 2, 2, jax.devices()[:4])
  shapes = decoder.param_shapes(CONFIG)
  shardings = sharding.param_shardings(CONFIG, mesh)
  for (path, shape), where in zip(
    jax.tree_util.tree_leaves_with_path(shapes), jax.tree.leaves(shardings)
  ):
    if path[-1].key in ("kernel", "table"):
      size = math.prod(where.shard_shape(shape.shape))
      assert size == math.prod(shape.shape) // 4, path
