"""One GRPO step of google-tunix at a time, told from outside when to run.

Started by `benchmarks/step_time.py` in an environment of its own, which knows
nothing of toolrl_jax:

    .peers/tunix/bin/python benchmarks/peers/tunix_step.py --core=1 ...

Reads one line from standard input for each step to run and answers with one
line of JSON on standard output: seconds of the rollout, of the rest and of the
whole step. The end of the input ends the process. What tunix itself writes
goes to standard error. With `--num_prompts` above 0, for
`benchmarks/rollout_throughput.py`, a step is a rollout alone, of as many
prompts, a group at a time.

The setting is a random Qwen2 in float32 on ids instead of text, with the
library's own sampler, learner and defaults. A step is what passes between
handing tunix a batch and its asking for the next one, with the new weights
computed.
"""

import argparse
import json
import os
import sys
import time

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen2 import model as qwen2
from tunix.rl import rl_cluster
from tunix.rl.grpo import grpo_learner
from tunix.rl.rollout import base_rollout

_NUM_RESERVED_IDS = 4
# Steps end with the input, not with a count.
_NO_LIMIT = 10**9


class IdTokenizer:
  """Text is ids in decimal, with a blank between them."""

  def __init__(self, vocab_size: int):
    self._vocab_size = vocab_size

  def encode(self, text, **_):
    """Returns the ids that a text names."""
    return [int(word) for word in text.split()]

  def decode(self, ids, **_):
    """Returns the text that names ids."""
    return " ".join(str(int(i)) for i in ids)

  def bos_id(self):
    """Returns the id in front of every prompt."""
    return 1

  def eos_id(self):
    """Returns the id that ends a completion."""
    # Outside the vocabulary: every completion has its full length.
    return self._vocab_size

  def pad_id(self):
    """Returns the id that fills up."""
    return 0


class Steps:
  """Iterates over batches, one for each line of standard input."""

  def __init__(self, options, answers):
    self._options = options
    self._answers = answers
    self._random = np.random.default_rng(0)
    self.rollout_secs = 0.0
    self.finish = lambda: None

  def __iter__(self):
    options = self._options
    while sys.stdin.readline():
      prompt = draw_prompt(options, self._random)
      self.rollout_secs = 0.0
      start, cpu_start = time.perf_counter(), time.process_time()
      yield {"prompts": np.array([prompt])}
      self.finish()
      step_secs = time.perf_counter() - start
      record = {
        "step_secs": step_secs,
        "rollout_secs": self.rollout_secs,
        "update_secs": step_secs - self.rollout_secs,
        "cpu_secs": time.process_time() - cpu_start,
      }
      print(json.dumps(record), file=self._answers, flush=True)


def draw_prompt(options, random):
  """Draws a prompt, one short: tunix puts its first id in front.

  Past a power of two it would pad.
  """
  ids = random.integers(
    _NUM_RESERVED_IDS, options.vocab, options.prompt_len - 1
  )
  return " ".join(map(str, ids))


def parse_options():
  """Reads the command line."""
  parser = argparse.ArgumentParser()
  for name in (
    "layers", "width", "ffn", "vocab", "heads", "kv_heads", "head_dim",
    "prompt_len", "max_prompt_len", "response_len", "group_size", "core",
  ):  # fmt: skip
    parser.add_argument(f"--{name}", type=int, required=True)
  parser.add_argument("--num_prompts", type=int, default=0)
  return parser.parse_args()


def make_cluster(options, mesh):
  """Builds the policy with its trainer and sampler."""
  config = qwen2.ModelConfig(
    num_layers=options.layers,
    vocab_size=options.vocab,
    embed_dim=options.width,
    hidden_dim=options.ffn,
    num_heads=options.heads,
    num_kv_heads=options.kv_heads,
    head_dim=options.head_dim,
    rope_theta=1_000_000,
    norm_eps=1e-6,
    use_tied_embedding=True,
  )
  with mesh:
    actor = qwen2.Qwen2(config, rngs=nnx.Rngs(0))
  cluster_config = rl_cluster.ClusterConfig(
    role_to_mesh={
      rl_cluster.Role.ACTOR: mesh,
      rl_cluster.Role.REFERENCE: mesh,
      rl_cluster.Role.ROLLOUT: mesh,
    },
    training_config=rl_cluster.RLTrainingConfig(
      actor_optimizer=optax.adamw(1e-6),
      eval_every_n_steps=_NO_LIMIT,
      max_steps=_NO_LIMIT,
      mini_batch_size=1,
      train_micro_batch_size=1,
    ),
    rollout_config=base_rollout.RolloutConfig(
      max_tokens_to_generate=options.response_len,
      max_prompt_length=options.max_prompt_len,
      kv_cache_size=options.max_prompt_len + options.response_len + 8,
      temperature=1.0,
    ),
  )
  return rl_cluster.RLCluster(
    actor=actor,
    tokenizer=IdTokenizer(options.vocab),
    cluster_config=cluster_config,
  )


def reward(prompts, completions, **_):
  """Gives each completion of a group a different reward."""
  return [float(index % 7) for index in range(len(completions))]


def check_lengths(output, options):
  """Refuses completions that are not of the exact length."""
  lengths = {len(tokens) for tokens in output.tokens}
  if lengths != {options.response_len}:
    raise ValueError(
      f"tunix must give {options.response_len} tokens a completion for an "
      f"equal comparison, got lengths {sorted(lengths)}."
    )


def serve_rollouts(options, cluster, answers):
  """Only generates, for each line that comes in."""
  random = np.random.default_rng(0)
  while sys.stdin.readline():
    prompts = [draw_prompt(options, random) for _ in range(options.num_prompts)]
    start, cpu_start = time.perf_counter(), time.process_time()
    output = cluster.generate(
      # As the learner asks: each prompt once a completion.
      [prompt for prompt in prompts for _ in range(options.group_size)],
      micro_batch_size=options.group_size,
    )
    record = {
      "step_secs": time.perf_counter() - start,
      "cpu_secs": time.process_time() - cpu_start,
    }
    check_lengths(output, options)
    print(json.dumps(record), file=answers, flush=True)


def main():
  """Trains, a step for each line that comes in."""
  # tunix prints; the answers keep the standard output for themselves.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  options = parse_options()
  for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {options.core})
  mesh = jax.make_mesh(
    (1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  cluster = make_cluster(options, mesh)
  if options.num_prompts:
    with mesh:
      serve_rollouts(options, cluster, answers)
    return
  learner = grpo_learner.GRPOLearner(
    rl_cluster=cluster,
    reward_fns=reward,
    algo_config=grpo_learner.GRPOConfig(
      num_generations=options.group_size, beta=0.0
    ),
  )
  steps = Steps(options, answers)
  steps.finish = lambda: jax.block_until_ready(
    jax.tree.leaves(nnx.state(cluster.actor_trainer.model, nnx.Param))
  )
  generate = cluster.generate

  def timed_generate(*args, **kwargs):
    start = time.perf_counter()
    output = generate(*args, **kwargs)
    check_lengths(output, options)
    steps.rollout_secs += time.perf_counter() - start
    return output

  cluster.generate = timed_generate
  with mesh:
    learner.train(steps)


if __name__ == "__main__":
  main()
