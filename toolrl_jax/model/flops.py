"""Matrix FLOPs of an update, from shapes alone.

From a decoder's shape and the padded lengths of a group to the operations of
its matrix products, forward and backward, in both layouts. A product of
[m, k] with [k, n] counts 2 m k n, and its two gradients as much again each;
what a backward pass recomputes (remat) is left out. The module does not know
devices or compilers.
"""

from typing import Literal, NamedTuple

from toolrl_jax.model import attention
from toolrl_jax.model.presets import DecoderConfig

Layout = Literal["shared", "repeated"]
Pairs = Literal["seen", "computed"]

# A multiply and an add; each product has two gradients of its own size.
_PER_PRODUCT = 2
_WITH_GRADIENTS = 3


class GroupFlops(NamedTuple):
  """Operations that one update spends on one group.

  Attributes:
    projections: Of q, k, v, o and the feed-forward block, by name; all layers.
    attention: Of scores and weighted values; all layers.
    logits: Of the output head, over completion tokens only.
  """

  projections: dict[str, int]
  attention: int
  logits: int

  @property
  def body(self) -> int:
    """All layers without the output head."""
    return sum(self.projections.values()) + self.attention

  @property
  def total(self) -> int:
    """Body and output head."""
    return self.body + self.logits


def group_update(
  config: DecoderConfig,
  *,
  prompt_tokens: int,
  completion_tokens: int,
  num_kept: int,
  layout: Layout,
  pairs: Pairs = "seen",
) -> GroupFlops:
  """Counts the matrix FLOPs of one group, forward and backward.

  With N tokens and A pairs of a query and a key:

      N = P + S T          shared          S (P + T)          repeated
      A = c(P) + S a       shared          S (c(P) + a)       repeated
      a = T P + c(T)       c(n) = n (n + 1) / 2
      FLOPs = 6 L (N params_of_a_layer + 2 A heads head_dim) + 6 S T D V

  Args:
    config: Shape of the decoder.
    prompt_tokens: Prompt bucket (P).
    completion_tokens: Completion bucket (T).
    num_kept: Rollouts that are updated on (S).
    layout: "shared" computes the prompt once, "repeated" once a rollout.
    pairs: "seen" counts the pairs that the mask lets through, "computed" those
      that the block structure of `attention` multiplies.

  Returns:
    The operations.
  """
  num_prompts = 1 if layout == "shared" else num_kept
  num_scored = num_kept * completion_tokens
  num_tokens = num_prompts * prompt_tokens + num_scored
  per_pair = 2 * config.num_heads * config.head_dim
  num_pairs = num_prompts * _causal_pairs(prompt_tokens, pairs)
  num_pairs += num_scored * prompt_tokens
  num_pairs += num_kept * _own_pairs(completion_tokens, pairs)
  scale = _PER_PRODUCT * _WITH_GRADIENTS
  return GroupFlops(
    projections={
      name: scale * config.num_layers * num_tokens * size
      for name, size in projection_sizes(config).items()
    },
    attention=scale * config.num_layers * num_pairs * per_pair,
    logits=scale * num_scored * config.width * config.vocab_size,
  )


def projection_sizes(config: DecoderConfig) -> dict[str, int]:
  """Returns the multiplications of a token in each kernel of one layer."""
  q_size = config.width * config.num_heads * config.head_dim
  kv_size = config.width * config.num_kv_heads * config.head_dim
  ffn_size = config.width * config.ffn_width
  return {
    "q_proj": q_size,
    "k_proj": kv_size,
    "v_proj": kv_size,
    "o_proj": q_size,
    "gate_proj": ffn_size,
    "up_proj": ffn_size,
    "down_proj": ffn_size,
  }


def _causal_pairs(length: int, pairs: Pairs) -> int:
  """Counts the pairs of a prompt with itself."""
  if pairs == "seen":
    return length * (length + 1) // 2
  bounds = attention.causal_bounds(length)
  return sum((end - start) * end for start, end in zip(bounds, bounds[1:]))


def _own_pairs(length: int, pairs: Pairs) -> int:
  """Counts the pairs of a completion with itself."""
  return length * (length + 1) // 2 if pairs == "seen" else length**2
