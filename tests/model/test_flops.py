"""The FLOPs of an update: the closed formula against what is multiplied."""

import functools
import math

import jax
import pytest

from toolrl_jax import lowering
from toolrl_jax.model import decoder, flops, presets
from toolrl_jax.training import blocks, step

_SIZES = lowering.Sizes(
  num_groups=1, prompt=512, completion=64, num_kept=3, group_size=3, slots=4
)
# Two attention blocks in a prompt of 512; a vocabulary that is not the width.
_CONFIG = presets.lookup("tiny")._replace(num_layers=2, num_kv_heads=2)


def _formula(config, sizes, layout, pairs):
  return flops.group_update(
    config,
    prompt_tokens=sizes.prompt,
    completion_tokens=sizes.completion,
    num_kept=sizes.num_kept,
    layout=layout,
    pairs=pairs,
  )


def _dot_flops(jaxpr) -> int:
  """Adds 2 m k n over every matrix product of a program."""
  total = 0
  for equation in jaxpr.eqns:
    for inner in jax.tree.leaves(
      list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
    ):
      inner = getattr(inner, "jaxpr", inner)
      if hasattr(inner, "eqns"):
        total += equation.params.get("length", 1) * _dot_flops(inner)
    if equation.primitive.name == "dot_general":
      ((summed, _), _) = equation.params["dimension_numbers"]
      left = equation.invars[0].aval.shape
      depth = math.prod(left[axis] for axis in summed)
      total += 2 * depth * math.prod(equation.outvars[0].aval.shape)
  return total


@pytest.mark.parametrize("layout", ["shared", "repeated"])
def test_group_update_equals_every_product_of_the_program(layout):
  options = step.UpdateOptions(layout=layout, remat="none", has_entropy=False)
  block = blocks.whole(lowering.full_batch(_SIZES))
  program = jax.make_jaxpr(
    functools.partial(step.block_sums, config=_CONFIG, options=options)
  )(decoder.param_shapes(_CONFIG), block)
  expected = _formula(_CONFIG, _SIZES, layout, "computed").total
  assert _dot_flops(program.jaxpr) == expected


@pytest.mark.parametrize("layout", ["shared", "repeated"])
def test_group_update_agrees_with_the_compiler_on_a_layer(layout):
  # Wide, so that element-wise operations, which it counts too, are few.
  config = _CONFIG._replace(width=512, head_dim=128, ffn_width=2048)
  options = step.UpdateOptions(layout=layout)
  counted = lowering.layer_flops(config, _SIZES, options=options)
  one = _formula(config._replace(num_layers=1), _SIZES, layout, "computed")
  assert counted == pytest.approx(one.body, rel=0.03)
  assert counted >= one.body


def test_group_update_by_hand():
  config = presets.lookup("tiny-qwen2")._replace(num_layers=3)
  counted = _formula(
    config, _SIZES._replace(prompt=10, completion=4, num_kept=2), "shared",
    "seen",
  )  # fmt: skip
  # 10 + 2 * 4 tokens, width 32, 4 query and 2 key heads of 8, 3 layers.
  assert counted.projections["q_proj"] == 6 * 3 * 18 * 32 * 32
  assert counted.projections["k_proj"] == 6 * 3 * 18 * 32 * 16
  assert counted.projections["down_proj"] == 6 * 3 * 18 * 64 * 32
  # 55 pairs in the prompt; a completion sees 4 * 10 and 1 + 2 + 3 + 4.
  assert counted.attention == 6 * 3 * (55 + 2 * 50) * 2 * 32
  assert counted.logits == 6 * 8 * 32 * 128
  assert counted.total == counted.body + counted.logits


@pytest.mark.parametrize(
  ("completion_tokens", "least", "most"),
  [(1024, 0.28, 0.30), (300, 0.13, 0.16)],
)
@pytest.mark.parametrize("pairs", ["seen", "computed"])
def test_shared_form_of_qwen3_4b_needs_a_fraction(
  completion_tokens, least, most, pairs
):
  sizes = _SIZES._replace(
    prompt=4096, completion=completion_tokens, num_kept=16
  )
  config = presets.lookup("qwen3-4b")
  shared = _formula(config, sizes, "shared", pairs)
  repeated = _formula(config, sizes, "repeated", pairs)
  assert shared.logits == repeated.logits
  assert least < shared.total / repeated.total <= most


def test_layouts_agree_on_a_group_of_one():
  sizes = _SIZES._replace(num_kept=1)
  for pairs in ("seen", "computed"):
    assert _formula(_CONFIG, sizes, "shared", pairs) == _formula(
      _CONFIG, sizes, "repeated", pairs
    )
