"""One GRPO step of ours, as `train.train_grpo` takes it, timed.

From a setting to a function that takes a step: prompts, rollout through
JetStream's driver, texts, scoring, selection and advantages, update, weight
sync, metrics and samples on disk. It knows no peer.

Random weights write no calls. So that parsing, matching and the reward do
their work all the same, each decoded completion is put into one: a think
block and a call with the words as an argument, with the right tool name in
every second rollout of a group.
"""

import argparse
import contextlib
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
import peer_process
import transformers

from toolrl_jax import scoring, types
from toolrl_jax.data import padding
from toolrl_jax.model import decoder, presets, tokenizer
from toolrl_jax.rollout import collect, engine
from toolrl_jax.training import (
  batches,
  completions,
  groups,
  metrics,
  state,
  step_metrics,
  update,
)

_LEARNING_RATE = 1e-6
_SAMPLES_PER_STEP = 4
_NO_TOTAL = 10**9
_EXAMPLE = types.Example(
  id="drawn",
  messages=({"role": "user", "content": "A room for two."},),
  tools=(),
  gold=types.Gold((types.ToolCall("book", {"words": "a", "guests": 2}),)),
)


class System(NamedTuple):
  """The parts of a run.

  Attributes:
    args: The setting.
    buckets: Prompt lengths that are compiled for.
    server: Answers prompts.
    updates: The compiled update.
    text: Ids to text.
    writer: Metrics and samples.
    compilations: Programs compiled since it was last asked.
  """

  args: argparse.Namespace
  buckets: tuple[int, ...]
  server: collect.RolloutServer
  updates: update.UpdateFns
  text: transformers.PreTrainedTokenizerBase
  writer: metrics.MetricWriter
  compilations: metrics.CompilationCounter


def decoder_config(args: argparse.Namespace) -> presets.DecoderConfig:
  """Returns the decoder of the setting."""
  return presets.DecoderConfig(
    family="qwen2",
    vocab_size=args.vocab,
    width=args.width,
    num_layers=args.layers,
    num_heads=args.heads,
    num_kv_heads=args.kv_heads,
    head_dim=args.head_dim,
    ffn_width=args.ffn,
    has_qkv_bias=True,
  )


def full_tokenizer(vocab_size: int) -> transformers.PreTrainedTokenizerBase:
  """Returns the bundled tokenizer, with a word for every id that it lacks."""
  text = tokenizer.load("bundled:tiny")
  text.add_tokens([f" w{i}" for i in range(len(text), vocab_size)])
  return text


def call_text(words: str, index: int) -> str:
  """Puts a completion's words into a call, right in name at even places."""
  # Drawn tokens include tags, which would make another number of calls.
  words = words.replace("<", " ")
  call = {
    "name": "book" if index % 2 == 0 else "cook",
    "parameters": {"words": words, "guests": 2},
  }
  return (
    f"<think> {words} </think>\n<tool_call>\n"
    f"{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
  )


@contextlib.contextmanager
def start(
  args: argparse.Namespace, max_prompt_len: int
) -> Iterator[Callable[[int], peer_process.Record]]:
  """Yields a function that takes one step and returns its seconds.

  Args:
    args: The setting.
    max_prompt_len: Longest prompt of the run, in tokens; at the length of
      the prompts or above.

  Yields:
    `take_step(prompt_len)`.
  """
  config = decoder_config(args)
  updates = update.make_update_fns(
    config,
    state.make_optimizer(_LEARNING_RATE),
    options=update.UpdateOptions(
      layout=args.layout, remat="none", max_tokens=args.response_len
    ),
    strategy="pmap",
    devices=jax.devices()[:1],
  )
  policy = updates.init(decoder.init_params(config, jax.random.key(0)))
  rollout_engine = engine.RolloutEngine(
    config,
    updates.params_for_engine(policy),
    slots=args.group_size,
    group_size=args.group_size,
    decode_chunk=args.decode_chunk,
    layout=args.layout,
  )
  generator = np.random.default_rng(0)
  number = 0
  with (
    tempfile.TemporaryDirectory() as folder,
    metrics.MetricWriter(pathlib.Path(folder), total_steps=_NO_TOTAL) as writer,
    collect.start(rollout_engine, "jetstream") as server,
  ):
    writer.truncate_to(-1)
    system = System(
      args,
      padding.default_buckets(max_prompt_len),
      server,
      updates,
      full_tokenizer(args.vocab),
      writer,
      metrics.CompilationCounter(),
    )

    def take_step(prompt_len: int) -> peer_process.Record:
      nonlocal policy, number
      number += 1
      prompt_ids = generator.integers(args.vocab, size=prompt_len).tolist()
      policy, record = _step(system, policy, prompt_ids, number)
      return record

    try:
      yield take_step
    finally:
      system.compilations.close()


def _step(
  system: System, policy: state.TrainState, prompt_ids: list[int], number: int
) -> tuple[state.TrainState, peer_process.Record]:
  """Takes a step; returns the policy and the seconds."""
  args, server = system.args, system.server
  start, cpu_start = time.perf_counter(), time.process_time()
  clock = step_metrics.Clock(system.compilations)
  clock.begin("rollout")
  server.reset_stats()
  prompts = padding.batch([prompt_ids], buckets=system.buckets, num_groups=1)
  rollouts = server.rollout(
    prompts,
    group_size=args.group_size,
    max_tokens=args.response_len,
    step=number,
    completion_buckets=(args.response_len,),
  )
  clock.begin("reward")
  texts, scored = _score(system, rollouts, number)
  reward, success = completions.padded_reward(scored.parts, prompts)
  kept = groups.keep_and_weigh(
    reward,
    success,
    prompts.is_real,
    jax.random.key(number),
    options=groups.GroupOptions(),
  )
  clock.begin("update")
  policy, row = update.run_updates(
    system.updates,
    policy,
    batches.assemble(prompts, rollouts, kept),
    key=jax.random.key(number),
  )
  clock.begin("sync")
  server.sync(system.updates.params_for_engine(policy), version=number)
  clock.end()
  row |= {
    **step_metrics.rollout_metrics(rollouts, prompts, server.stats),
    **step_metrics.reward_metrics(scored, [_EXAMPLE.gold], kept),
    **clock.metrics(),
  }
  _write(system, number, row, (texts, rollouts, scored, kept))
  jax.block_until_ready(policy)
  end = time.perf_counter()
  _check(row, args)
  return policy, {
    "step_secs": end - start,
    "rollout_secs": row["rollout/secs"],
    "update_secs": end - start - row["rollout/secs"],
    "text_secs": row["reward/secs"],
    "cpu_secs": time.process_time() - cpu_start,
  }


def _score(
  system: System, rollouts: types.Rollouts, number: int
) -> tuple[list[list[str]], scoring.ScoredCompletions]:
  """Decodes and scores the completions as calls."""
  (words,) = tokenizer.texts(rollouts, system.text, stop_ids=())
  texts = [[call_text(words[i], i) for i in range(len(words))]]
  scored = scoring.parse_and_score(
    texts, [_EXAMPLE.gold], reward=scoring.RewardOptions(), step=number
  )
  return texts, scored


def _write(system: System, number: int, row: dict, parts: tuple) -> None:
  """Writes metrics and samples, as a run does."""
  texts, rollouts, scored, kept = parts
  samples = completions.samples(
    [_EXAMPLE],
    texts,
    rollouts,
    scored,
    kept,
    count=_SAMPLES_PER_STEP,
    style="toolrl",
  )
  system.writer.write_samples(number, samples)
  system.writer.write(number, row)


def _check(row: dict, args: argparse.Namespace) -> None:
  """Refuses a step that did not train on all tokens."""
  num_tokens = args.group_size * args.response_len
  is_equal = args.group_size > 1 and row["filter/zero_variance_frac"]
  if (
    row["update/loss_tokens"] != num_tokens
    or not row["update/is_finite"]
    or is_equal
  ):
    raise ValueError(
      f"a step must train on {num_tokens} tokens with a finite loss and "
      f"unequal rewards, got {row}."
    )
