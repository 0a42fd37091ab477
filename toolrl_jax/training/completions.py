"""From a step's completions to what selection, logs and samples take.

Groups read and scored, rewards padded to the masked groups, and a few rollouts
written out. It does not know how rewards or updates are computed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import transformers

from toolrl_jax import hosts, scoring, types
from toolrl_jax.kernels import loss as loss_kernel
from toolrl_jax.model import tokenizer as tokenizer_lib
from toolrl_jax.parsing import tool_calls
from toolrl_jax.training import batches, groups, update


class GroupReader:
  """Decodes, parses and encodes groups while others still decode.

  Called as the `on_group` of a rollout, in any order; in a run of several
  processes for the groups of this one.
  """

  def __init__(
    self,
    examples: Sequence[types.Example],
    tokenizer: transformers.PreTrainedTokenizerBase,
    stop_ids: Sequence[int],
    *,
    reward: Mapping[str, Any],
    style: tool_calls.Style,
  ):
    """Waits for the groups of `examples`."""
    self._examples = examples
    self._tokenizer, self._stop_ids = tokenizer, stop_ids
    self._reward = scoring.RewardOptions.from_mapping(reward)
    self._style = style
    self._texts: dict[int, list[str]] = {}
    self._groups: dict[int, scoring.ReadGroup] = {}

  def __call__(self, index: int, rows: types.Rollouts) -> None:
    """Takes the completions of one example, [1, G, t]."""
    (texts_of_group,) = tokenizer_lib.texts(
      rows, self._tokenizer, self._stop_ids
    )
    self._texts[index] = texts_of_group
    self._groups[index] = scoring.read_group(
      texts_of_group,
      self._examples[index].gold,
      reward=self._reward,
      style=self._style,
    )

  @property
  def texts(self) -> dict[int, list[str]]:
    """Completions [G] of each example that this process read, by its index."""
    return self._texts

  def score(
    self, step: int, rollouts: types.Rollouts
  ) -> scoring.ScoredCompletions:
    """Scores the groups and gathers those of all processes.

    Args:
      step: The training step.
      rollouts: What was rolled out, masked groups included; its sizes are read.

    Returns:
      Rewards of all examples, in their order.
    """
    own = [i for i in range(len(self._examples)) if i in self._groups]
    scored = scoring.score_groups(
      [self._groups[i] for i in own], reward=self._reward, step=step
    )
    if hosts.count() == 1:
      return scored
    num_rows, group_size = rollouts.finish.shape
    rows = hosts.own_rows(num_rows)

    def fill(x):
      # A short batch may leave this process without a group.
      padded = np.zeros((rows.stop - rows.start, group_size), x.dtype)
      padded[: len(own)] = x.reshape(-1, group_size)
      return padded

    own_arrays = jax.tree.map(fill, scored[:3])
    parts, is_parsed, has_call = jax.tree.map(
      lambda x: x[: len(self._examples)],
      hosts.gather_rows(own_arrays, num_rows),
    )
    return scoring.ScoredCompletions(parts, is_parsed, has_call, scored.parsed)


def padded_reward(
  scored: types.RewardParts, prompts: types.PromptBatch
) -> tuple[np.ndarray, np.ndarray]:
  """Returns total and success with rows of 0 for masked groups, [B, G]."""
  missing = len(prompts.is_real) - len(scored.total)
  pad = lambda x: np.pad(np.asarray(x), ((0, missing), (0, 0)))
  return pad(scored.total), pad(scored.success)


def shuffled_in_groups(
  reward: np.ndarray, success: np.ndarray, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
  """Returns both with the rollouts of each group permuted alike, [B, G]."""
  order = jax.random.permutation(
    key, np.tile(np.arange(reward.shape[1]), (len(reward), 1)), axis=1,
    independent=True,
  )  # fmt: skip
  take = lambda x: np.take_along_axis(x, np.asarray(order), axis=1)
  return take(reward), take(success)


def reference_kl(
  updates: update.UpdateFns,
  reference_params: Any,
  prompts: types.PromptBatch,
  rollouts: types.Rollouts,
) -> np.ndarray:
  """Returns each rollout's summed log-ratio to the reference, [B, G] nats."""
  batch, group_size, _ = rollouts.completion_ids.shape
  everything = groups.KeptGroups(
    indices=np.tile(np.arange(group_size, dtype=np.int32), (batch, 1)),
    advantage=np.zeros((batch, group_size), np.float32),
    weight=np.ones((batch, group_size), np.float32),
    is_zero_variance=np.zeros(batch, bool),
  )
  reference_logprobs = updates.logprobs(
    reference_params, batches.assemble(prompts, rollouts, everything)
  )
  return np.asarray(
    loss_kernel.kl_in_reward(
      jnp.asarray(rollouts.logprobs),
      jnp.asarray(reference_logprobs),
      jnp.asarray(rollouts.completion_mask),
    )
  )


def samples(
  examples: Sequence[types.Example],
  text: Mapping[int, Sequence[str]] | Sequence[Sequence[str]],
  rollouts: types.Rollouts,
  scored: scoring.ScoredCompletions,
  kept: groups.KeptGroups,
  *,
  count: int,
  style: tool_calls.Style,
) -> list[dict[str, Any]]:
  """Returns rollouts of the first groups of a step, for samples.jsonl.

  Args:
    examples: The step's examples.
    text: Their completions, [B][G]; those that are missing give no sample.
    rollouts: The same as tokens.
    scored: Their rewards.
    kept: Which of them were trained on.
    count: Most rollouts returned, one a group.
    style: Form in which the gold is shown.

  Returns:
    JSON objects.
  """
  indices = np.asarray(kept.indices)
  group_size = rollouts.finish.shape[1]
  read = sorted(text) if isinstance(text, Mapping) else range(len(text))
  return [
    {
      "id": examples[b].id,
      "rollout": g,
      "completion": text[b][g],
      "gold": tool_calls.render_gold(examples[b].gold, style=style),
      "finish": "stop"
      if rollouts.finish[b, g] == types.FINISH_STOP
      else "length",
      "is_kept": bool(g in indices[b]),
      **{
        name: part[b, g].item() for name, part in scored.parts._asdict().items()
      },
    }
    # One rollout a group, a different one in each.
    for b, g in ((b, b % group_size) for b in read[:count])
  ]
