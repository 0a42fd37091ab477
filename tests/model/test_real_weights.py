"""A real Qwen2.5-Coder GGUF against Hugging Face's greedy tokens.

The golden file is made by tests/golden/make_greedy.py; docs/real_weights.md
has the commands.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toolrl_jax.model import decoder, tokenizer, weights

GOLDEN = "greedy_qwen2.5-coder-0.5b.json"

pytestmark = pytest.mark.real_weights


@pytest.fixture(scope="module")
def golden(root_dir):
  return json.loads((root_dir / "tests" / "golden" / GOLDEN).read_text())


@pytest.fixture(scope="module")
def path(request):
  return request.config.getoption("--real-weights")


def test_tokenizer_renders_the_golden_prompts(golden, path):
  text = tokenizer.load(path)
  for row in golden:
    ids = text.apply_chat_template(
      row["messages"], add_generation_prompt=True, return_dict=False
    )
    assert ids == row["prompt_ids"]
    assert text.decode(row["completion_ids"]) == row["text"]
  assert weights.stop_ids(path) == (151645, 151643)


def test_greedy_tokens_equal_transformers(golden, path):
  config, params = weights.load(path)
  assert (config.num_layers, config.width, config.vocab_size) == (
    (24, 896, 151_936)
  )
  found = greedy(config, params, [row["prompt_ids"] for row in golden], 32)
  for row, tokens in zip(golden, found, strict=True):
    # The smallest gap between the two largest logits is 0.04.
    assert tokens.tolist() == row["completion_ids"]


def greedy(config, params, prompts, num_tokens) -> np.ndarray:
  """The most likely token again and again, int [rows, num_tokens]."""
  length = jnp.asarray([len(prompt) for prompt in prompts])
  rows, size = len(prompts), int(length.max())
  ids = np.zeros((rows, size), np.int32)
  for row, prompt in zip(ids, prompts):
    row[: len(prompt)] = prompt
  logits, prefix_k, prefix_v = jax.jit(
    decoder.prefill, static_argnames="config"
  )(params, jnp.asarray(ids), length, config=config)
  own = jnp.zeros((*prefix_k.shape[:2], num_tokens, *prefix_k.shape[3:]))
  cache = decoder.DecodeCache(
    prefix_k,
    prefix_v,
    length,
    jnp.arange(rows),
    own,
    own,
    jnp.zeros(rows, jnp.int32),
  )
  step = jax.jit(decoder.decode, static_argnames="config")
  tokens = [logits.argmax(-1)]
  for _ in range(num_tokens - 1):
    logits, cache = step(
      params,
      tokens[-1],
      cache,
      jnp.ones(rows, bool),
      jnp.asarray(rows),
      config=config,
    )
    tokens.append(logits.argmax(-1))
  return np.stack(tokens, axis=1)
