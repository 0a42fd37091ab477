"""A short text for a pytree of arrays, the same on any mesh.

Tells parameters from other or damaged ones. It is no defence against somebody
who wants two to look alike. Knows nothing of what the arrays mean.
"""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp

_NUM_DIGITS = 16


def fingerprint(tree: Any) -> str:
  """Returns 16 hexadecimal digits for the values of a pytree of arrays."""
  text = repr(words(tree))
  return hashlib.sha256(text.encode()).hexdigest()[:_NUM_DIGITS]


def words(tree: Any) -> list[int]:
  """Returns a number for each leaf, in [0, 2^32).

  Each leaf gives sum_i w_i bits(x_i) mod 2^32 with odd weights w_i that depend
  on the place i: exact in any order, so no mesh or host count changes it, and
  any one changed element shows.

  Args:
    tree: Arrays of any placement.

  Returns:
    A number a leaf, in the order of the leaves.
  """
  return [int(word) for word in jax.tree.leaves(_leaf_words(tree))]


@jax.jit
def _leaf_words(tree: Any) -> Any:
  return jax.tree.map(_leaf_word, tree)


def _leaf_word(x: Any) -> Any:
  """Sums the bits of one leaf under odd weights, uint32 scalar."""
  if jnp.issubdtype(x.dtype, jnp.bool_):
    x = x.astype(jnp.uint8)
  width = min(x.dtype.itemsize, 4) * 8
  # A dtype of 64 bits gains a last axis of two words.
  bits = jax.lax.bitcast_convert_type(x, f"uint{width}").astype(jnp.uint32)
  place = jnp.zeros((), jnp.uint32)
  for axis in range(bits.ndim):
    # Multiplying mixes, so that two places rarely share a weight.
    place = (place ^ jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)) * (
      jnp.uint32(0x9E3779B1)
    )
  return jnp.sum(bits * (2 * place + 1), dtype=jnp.uint32)
