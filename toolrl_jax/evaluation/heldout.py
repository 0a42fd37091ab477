"""Held-out scores during training: greedy and sampled answers to fixed rows.

From examples and a rollout server to a few numbers. Rows whose gold holds no
call are counted apart, so that a policy that always calls cannot hide. The
sampling keys are the same at every evaluation, so two evaluations differ by
the policy alone.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tqdm

from toolrl_jax import hosts, scoring, types
from toolrl_jax.data import padding
from toolrl_jax.parsing import tool_calls
from toolrl_jax.rollout import collect

# Training counts its steps from 1.
_SAMPLING_STEP = 0
# What takes less is over before anybody asks.
_SILENT_SECS = 5.0
# Seconds between two states of the bar where nobody watches it live.
_FILE_SECS = 60.0


class HeldOut(NamedTuple):
  """Rows of the held-out split, ready to be answered.

  Attributes:
    examples: Rows.
    prompt_ids: Token ids of each row's prompt.
    buckets: Bucket lengths of the prompts.
  """

  examples: Sequence[types.Example]
  prompt_ids: Sequence[Sequence[int]]
  buckets: Sequence[int]


def evaluate(
  heldout: HeldOut,
  server: collect.RolloutServer,
  decode_text,
  *,
  reward: Mapping[str, Any],
  style: tool_calls.Style,
  step: int,
  max_tokens: int,
  completion_buckets: Sequence[int],
  temperature: float,
  is_sampled: bool,
) -> dict[str, float]:
  """Answers every held-out row and scores the answers.

  Args:
    heldout: Rows.
    server: Rollout server with the policy's weights.
    decode_text: From `types.Rollouts` to texts [B][G].
    reward: The `reward` section of the configuration.
    style: Form of the completions.
    step: Training step, for reward schedules.
    max_tokens: Longest answer, in tokens.
    completion_buckets: Bucket lengths of the answers.
    temperature: Of the sampled answers; the greedy ones use 0.
    is_sampled: Whether to sample at all, beside greedy.

  Returns:
    Metrics under `heldout/`; fractions in [0, 1], rewards in reward units.
  """
  golds = [example.gold for example in heldout.examples]
  needs_call = np.array([bool(gold.calls) for gold in golds])
  metrics: dict[str, float] = {}
  kinds = [("greedy", 0.0)]
  if is_sampled:
    kinds.append(("sampled", temperature))
  for name, heat in kinds:
    with _bar(f"held-out rows, {name}", len(heldout.examples)) as bar:
      texts = _answer(
        heldout,
        server,
        decode_text,
        max_tokens=max_tokens,
        completion_buckets=completion_buckets,
        temperature=heat,
        on_row=functools.partial(_advance, bar),
      )
    scored = scoring.parse_and_score(
      texts, golds, reward=reward, step=step, style=style
    )
    is_formatted = [
      gold.kind in one.formats_one_or_two
      for gold, one in zip(golds, scored.parsed)
    ]
    success = np.asarray(scored.parts.success)
    # The sampled answers are the main ones: what training samples.
    suffix = "_greedy" if name == "greedy" else ""
    metrics |= {
      f"heldout/exact_{name}_frac": float(success.mean()),
      f"heldout/format{suffix}_frac": float(np.mean(is_formatted)),
      f"heldout/reward{suffix}": float(scored.parts.total.mean()),
    }
    if needs_call.any():
      metrics[f"heldout/call_exact{suffix}_frac"] = float(
        success[needs_call].mean()
      )
    if not needs_call.all():
      metrics[f"heldout/refusal{suffix}_frac"] = float(
        success[~needs_call].mean()
      )
  return metrics


def _bar(what: str, num_rows: int) -> tqdm.tqdm:
  """Returns a bar over the rows that this process answers, with time left."""
  return tqdm.tqdm(
    desc=what,
    total=num_rows // hosts.count(),
    unit="row",
    delay=_SILENT_SECS,
    mininterval=1.0 if sys.stderr.isatty() else _FILE_SECS,
    leave=False,
  )


def _advance(bar: tqdm.tqdm, row: int, rollouts: types.Rollouts) -> None:
  """Counts a row that is answered."""
  del row, rollouts
  bar.update()


def _answer(
  heldout: HeldOut,
  server: collect.RolloutServer,
  decode_text,
  *,
  max_tokens: int,
  completion_buckets: Sequence[int],
  temperature: float,
  on_row: Callable[[int, types.Rollouts], None],
) -> list[str]:
  """Returns one answer a row; rows of one bucket are answered together.

  `on_row` hears of each answered row, on a thread beside the decoding.
  """
  texts = [""] * len(heldout.examples)
  by_bucket: dict[int, list[int]] = {}
  for index, ids in enumerate(heldout.prompt_ids):
    bucket = padding.bucket_for(len(ids), heldout.buckets)
    by_bucket.setdefault(bucket, []).append(index)
  for bucket, indices in sorted(by_bucket.items()):
    prompts = padding.batch(
      [heldout.prompt_ids[i] for i in indices],
      buckets=[bucket],
      num_groups=len(indices),
    )
    rollouts = server.rollout(
      prompts,
      group_size=1,
      max_tokens=max_tokens,
      temperature=temperature,
      step=_SAMPLING_STEP,
      completion_buckets=completion_buckets,
      on_group=on_row,
    )
    for index, (text,) in zip(indices, decode_text(rollouts)):
      texts[index] = text
  return texts
