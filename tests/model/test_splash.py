"""The TPU attention of a shared-prompt row against the CPU forms."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as kernels,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as masks,
)
from jax.sharding import NamedSharding, PartitionSpec

from toolrl_jax.model import attention, sharding, splash

# Query 0 and 1 are the prompt, 2-3 and 4-5 two completions, 6-7 the tail.
_DENSE = np.array(
  [
    [1, 0, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0, 0, 0],
    [1, 1, 1, 0, 0, 0, 0, 0],
    [1, 1, 1, 1, 0, 0, 0, 0],
    [1, 1, 0, 0, 1, 0, 0, 0],
    [1, 1, 0, 0, 1, 1, 0, 0],
    [1, 1, 0, 0, 0, 0, 1, 0],
    [1, 1, 0, 0, 0, 0, 1, 1],
  ],
  bool,
)


def _inputs(batch, num_tokens, num_heads, num_kv_heads, head_dim):
  keys = jax.random.split(jax.random.key(0), 4)
  q = jax.random.normal(keys[0], (batch, num_tokens, num_heads, head_dim))
  k, v = (
    jax.random.normal(key, (batch, num_tokens, num_kv_heads, head_dim))
    for key in keys[1:3]
  )
  return q * head_dim**-0.5, k, v, jax.random.normal(keys[3], q.shape)


def _values_and_gradients(attend, q, k, v, weights):
  """Returns the output and the gradients of its weighted sum."""

  def weigh(q, k, v):
    out = attend(q, k, v)
    return (out * weights).sum(), out

  step = jax.value_and_grad(weigh, argnums=(0, 1, 2), has_aux=True)
  (_, out), gradients = jax.jit(step)(q, k, v)
  return out, gradients


def _assert_near(actual, expected, tolerance=1e-5):
  difference = np.abs(np.asarray(actual) - np.asarray(expected)).max()
  assert difference <= tolerance * np.abs(expected).max()


def _check_gradients(shape, heads, lengths, mesh=None):
  """Compares output and gradients with the CPU forms on real tokens."""
  prompt_size, size, num_kept = shape
  num_tokens = prompt_size + num_kept * size
  q, k, v, weights = _inputs(len(lengths), num_tokens, *heads)
  lengths = jnp.array(lengths)
  place = jnp.arange(num_tokens)
  is_real = (place < lengths[:, None]) | (place >= prompt_size)
  weights *= is_real[:, :, None, None]
  sizes = {"prompt_size": prompt_size, "num_kept": num_kept}

  def attend(q, k, v):
    return splash.shared_prompt(
      q, k, v, lengths, **sizes, mesh=mesh, interpret=True
    )

  expected, expected_gradients = _values_and_gradients(
    lambda *x: attention.shared_prompt(*x, lengths, **sizes), q, k, v, weights
  )
  out, gradients = _values_and_gradients(attend, q, k, v, weights)
  assert np.isfinite(out).all()
  _assert_near(out[is_real], expected[is_real])
  for actual, wanted in zip(gradients, expected_gradients, strict=True):
    _assert_near(actual, wanted)


@pytest.mark.parametrize(
  "shape, heads",
  [((128, 128, 2), (2, 1, 64)), ((192, 72, 3), (4, 2, 128))],
)
def test_shared_prompt_equals_cpu_attention(shape, heads):
  _check_gradients(shape, heads, [1, shape[0] - 37, shape[0]])


def test_shared_prompt_on_mesh_equals_cpu_attention():
  mesh = sharding.make_mesh(1, 2, 2, jax.devices()[:4])
  # Two shards of heads use the one key head.
  _check_gradients((32, 32, 3), (4, 1, 64), [20, 32], mesh)


# Each shard holds one of two key heads; three query heads are not split.
@pytest.mark.parametrize("num_heads, num_kv_heads", [(4, 2), (3, 1)])
def test_shared_prompt_splits_heads_over_mesh(num_heads, num_kv_heads):
  mesh = sharding.make_mesh(1, 1, 2, jax.devices()[:2])
  q, k, v, _ = _inputs(1, 128, num_heads, num_kv_heads, 64)
  length = jnp.array([32])
  sizes = {"prompt_size": 32, "num_kept": 3}
  attend = functools.partial(
    splash.shared_prompt, **sizes, mesh=mesh, interpret=True
  )
  out = jax.jit(attend)(q, k, v, length)
  _assert_near(out, attention.shared_prompt(q, k, v, length, **sizes))


def test_shared_prompt_refuses_uneven_completions():
  q = k = v = jnp.zeros((1, 14, 1, 64))
  with pytest.raises(ValueError, match="multiple of num_kept, got 10 for 3"):
    splash.shared_prompt(q, k, v, jnp.array([4]), prompt_size=4, num_kept=3)


def test_shared_prompt_refuses_rows_the_mesh_does_not_divide():
  q = k = v = jnp.zeros((3, 14, 1, 64))
  mesh = sharding.make_mesh(1, 2, 1, jax.devices()[:2])
  with pytest.raises(ValueError, match="data x fsdp, got 3 for 2"):
    splash.shared_prompt(
      q, k, v, jnp.array([4] * 3), prompt_size=4, num_kept=2, mesh=mesh
    )


def test_mask_equals_hand_written_one():
  mask = splash.SharedPromptMask(8, 2, 2)
  assert mask.shape == (8, 8)
  np.testing.assert_array_equal(mask[:, :], _DENSE)


@pytest.mark.parametrize("height", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_mask_blocks_equal_slices(height, width):
  mask = splash.SharedPromptMask(8, 2, 2)
  for top in range(9 - height):
    for left in range(9 - width):
      block = (slice(top, top + height), slice(left, left + width))
      np.testing.assert_array_equal(mask[block], _DENSE[block])


def test_masks_are_equal_by_sizes():
  mask = splash.SharedPromptMask(8, 2, 2)
  same, other = (splash.SharedPromptMask(8, 2, size) for size in (2, 3))
  assert mask == same and hash(mask) == hash(same) and mask != other
  assert mask.mask_function == same.mask_function


def test_mask_refuses_rows_beyond_int32():
  with pytest.raises(ValueError, match=r"below 2 \*\* 31, got 65536 x 65534"):
    splash.SharedPromptMask(65536, 2, 1)


def test_mask_lets_the_kernel_skip_siblings():
  mask = splash.SharedPromptMask(2048 + 4 * 1024, 2048, 1024)
  kernel = kernels.make_splash_mha(
    masks.MultiHeadMask((mask,)),
    block_sizes=kernels.BlockSizes(512, 512),
    head_shards=1,
    q_seq_shards=1,
  )
  blocks = np.asarray(kernel.fwd_mask_info.block_mask)
  # Prompt: 4 x 5 / 2; a completion: 2 x 4 to the prompt and 2 x 3 / 2 of its
  # own. Mixed ones are on the diagonal; no row needs more than 4 + 2.
  assert (blocks > 0).sum() == 10 + 4 * 11
  assert (blocks == 1).sum() == 12
  assert blocks.shape == (1, 12, 6)
  assert kernel.fwd_mask_info.partial_mask_blocks is None


@pytest.mark.parametrize(
  "num_tokens, expected",
  [
    (128, 128),
    (300, 128),
    (512, 512),
    (768, 256),
    (900, 128),
    (960, 512),
    (1025, 128),
    (6144, 512),
  ],
)
def test_block_size_pads_little(num_tokens, expected):
  assert splash._block_size(num_tokens) == expected


@pytest.mark.parametrize(
  "num_heads, num_kv_heads, tensor, expected",
  [(16, 2, 2, 1), (12, 2, 4, 2), (14, 2, 4, 0), (32, 8, 16, 2), (14, 2, 1, 1)],
)
def test_copies_of_kv_head_split_whole_groups(
  num_heads, num_kv_heads, tensor, expected
):
  copies = splash._copies_of_kv_head(num_heads, num_kv_heads, tensor)
  assert copies == expected


@pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None,
  reason="needs the TPU compiler: install the wheel libtpu",
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_shared_prompt_compiles_for_tpu(head_dim, monkeypatch):
  # No chip is used, so no other process can be in the way.
  monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
  devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
  mesh = sharding.make_mesh(1, 2, 2, devices)
  spec = PartitionSpec(("data", "fsdp"), None, "tensor")

  def shaped(shape, spec, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(
      shape, dtype, sharding=NamedSharding(mesh, spec)
    )

  def step(q, k, v, prompt_length, gradient):
    out, pull = jax.vjp(
      lambda *x: splash.shared_prompt(
        *x, prompt_length, prompt_size=640, num_kept=4, mesh=mesh
      ),
      q,
      k,
      v,
    )
    return out, pull(gradient)

  q = shaped((2, 1664, 4, head_dim), spec)
  k = shaped((2, 1664, 2, head_dim), spec)
  lengths = shaped((2,), PartitionSpec(("data", "fsdp")), jnp.int32)
  lowered = jax.jit(step).trace(q, k, k, lengths, q).lower()
  text = lowered.compile().as_text()
  for phase in ("fwd", "dq", "dkv"):
    assert f"splash_mha_{phase}_segmented" in text
