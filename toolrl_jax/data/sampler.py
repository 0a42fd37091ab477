"""Chooses the prompts of each step, and leaves out those already mastered.

From example ids to indices of one batch. A prompt whose whole rollout group
was right in its last k visits is left out before any token is generated (the
online filter of arXiv:2606.00135). The sampler knows neither text nor reward;
it is told which groups were solved. Its state is exact: saved and restored at
any point, it continues bit for bit.

The rule, with c the streak of a prompt and k = `streak` (0 switches it off):

    c := c + 1 when a visit is solved, else 0          (at `observe`)
    a prompt takes part in an epoch when c < k         (at the epoch's start)

What an observation changes takes effect at the start of the next epoch. The
paper does not say how a left-out prompt returns; `reentry` chooses:

    skip_epoch  An epoch left out counts as not solved, so c := 0 and the
                prompt is back in the next epoch: an always-solved prompt is
                visited in k of k + 1 epochs, at k = 1 in every other one.
    permanent   c stays; the prompt never returns.
    probe       c stays; the prompt is visited again `probe_every_epochs`
                epochs after its last visit. A solved probe leaves it out for
                as long again, a failed one sets c := 0 and it is back.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

Reentry = Literal["skip_epoch", "permanent", "probe"]

# Batches whose prompts are sorted by length together. More save padding, fewer
# keep batches random; at 8 a batch spans an eighth of the lengths.
_WINDOW_BATCHES = 8
_NEVER = -1


class SampledBatch(NamedTuple):
  """The prompts of one step.

  Attributes:
    indices: Positions in the sampler's ids, int32 [N]; N is
      `prompts_per_step`, or less in the last batch of an epoch.
    epoch: Epoch of this batch, from 0.
    step: Batches given before this one, over all epochs.
    num_skipped: Prompts that the filter left out of this epoch.
    is_last_of_epoch: Whether the epoch ends with this batch.
  """

  indices: Int[np.ndarray, " N"]
  epoch: int
  step: int
  num_skipped: int
  is_last_of_epoch: bool


class PromptSampler:
  """Gives batches of prompt indices, epoch by epoch."""

  def __init__(
    self,
    ids: Sequence[str],
    *,
    prompts_per_step: int,
    streak: int = 0,
    reentry: Reentry = "skip_epoch",
    probe_every_epochs: int = 4,
    num_epochs: int = 1,
    max_steps: int = 0,
    seed: int = 0,
    is_shuffled: bool = True,
    lengths: Sequence[int] | Int[np.ndarray, " D"] | None = None,
  ):
    """Starts before the first epoch.

    Args:
      ids: Example ids, unique; the state belongs to exactly these.
      prompts_per_step: Prompts a batch (B), at least 1.
      streak: k of the filter; 0 leaves nothing out.
      reentry: How a left-out prompt returns, see the module.
      probe_every_epochs: Epochs between two visits of a left-out prompt under
        "probe", at least 1 (1 leaves nothing out).
      num_epochs: Passes over the ids, at least 1.
      max_steps: Batches at which to stop early; 0 is no limit.
      seed: Of the order; epoch e is ordered by (seed, e) alone.
      is_shuffled: False takes the ids in their order, for rows that are meant
        to be learned in order; `lengths` then changes nothing.
      lengths: Prompt lengths in tokens; given, a batch holds prompts of
        similar length.

    Raises:
      ValueError: An argument is out of its range, or ids repeat.
    """
    _check_at_least("sampler.prompts_per_step", prompts_per_step, 1)
    _check_at_least("sampler.streak", streak, 0)
    _check_at_least("sampler.probe_every_epochs", probe_every_epochs, 1)
    _check_at_least("sampler.num_epochs", num_epochs, 1)
    _check_at_least("sampler.max_steps", max_steps, 0)
    _check_at_least("seed", seed, 0)
    _check_ids(ids, len(ids) if lengths is None else len(lengths))
    self._num_prompts = len(ids)
    self._lengths = None if lengths is None else np.asarray(lengths, np.int32)
    self._prompts_per_step = prompts_per_step
    self._streak_limit = streak
    self._reentry = reentry
    self._probe_every_epochs = probe_every_epochs
    self._num_epochs = num_epochs
    self._max_steps = max_steps
    self._seed = seed
    self._is_shuffled = is_shuffled
    self._settings = {
      "ids_sha256": _sha256("\0".join(ids).encode()),
      "lengths_sha256": _sha256(
        b"" if self._lengths is None else self._lengths.tobytes()
      ),
      "prompts_per_step": prompts_per_step,
      "streak": streak,
      "reentry": reentry,
      "probe_every_epochs": probe_every_epochs,
      "seed": seed,
      "is_shuffled": is_shuffled,
    }
    self._step = 0
    self._epoch = -1
    self._cursor = 0
    self._order = np.zeros(0, np.int32)
    self._is_active = np.ones(len(ids), bool)
    self._streak = np.zeros(len(ids), np.int32)
    # Solved visits in a row; unlike the streak, an epoch left out does not
    # reset it. Only the statistics read it.
    self._solved_run = np.zeros(len(ids), np.int32)
    self._last_visit = np.full(len(ids), _NEVER, np.int32)
    # Row k - 1: visits after k solved ones in a row, and the solved of them.
    self._stay_counts = np.zeros((2, 2), np.int64)

  def next_batch(self) -> SampledBatch | None:
    """Gives the next batch and begins an epoch where one is due.

    Call `observe` for a batch before asking for the next one.

    Returns:
      The batch; None when the epochs or steps are used up, or when no prompt
      can ever return.
    """
    if self._max_steps and self._step >= self._max_steps:
      return None
    while self._cursor >= len(self._order):
      if not self._begin_epoch():
        return None
    end = min(self._cursor + self._prompts_per_step, len(self._order))
    batch = SampledBatch(
      indices=self._order[self._cursor : end].copy(),
      epoch=self._epoch,
      step=self._step,
      num_skipped=int(np.sum(~self._is_active)),
      is_last_of_epoch=end == len(self._order),
    )
    self._last_visit[batch.indices] = self._epoch
    self._cursor = end
    self._step += 1
    return batch

  def observe(
    self,
    indices: Int[np.ndarray, " N"],
    is_solved: Bool[np.ndarray, " N"],
  ) -> None:
    """Notes which groups of a batch were solved.

    Args:
      indices: Prompts, as `next_batch` gave them; no padded groups.
      is_solved: True where every rollout of the group succeeded.

    Raises:
      ValueError: An index is unknown.
    """
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(
      self._streak
    ):
      raise ValueError(
        f"indices must be in [0, {len(self._streak)}), got {indices.min()} to"
        f" {indices.max()}; pass the batch's own indices."
      )
    for index, solved in zip(indices.tolist(), is_solved.tolist(), strict=True):
      for num_solved in (1, 2):
        if self._solved_run[index] >= num_solved:
          self._stay_counts[num_solved - 1] += (1, int(solved))
      self._streak[index] = self._streak[index] + 1 if solved else 0
      self._solved_run[index] = self._solved_run[index] + 1 if solved else 0

  def metrics(self) -> dict[str, float]:
    """Gives what the filter did, for the log.

    Returns:
      `filter/skipped_prompts` of this epoch; `filter/stay_1_frac` and
      `filter/stay_2_frac`, the share of visits solved among those whose prompt was
      solved in its previous one or two visits, where there were any.
    """
    values = {"filter/skipped_prompts": float(np.sum(~self._is_active))}
    for num_solved, (num_visits, num_stayed) in enumerate(
      self._stay_counts.tolist(), start=1
    ):
      if num_visits:
        values[f"filter/stay_{num_solved}_frac"] = num_stayed / num_visits
    return values

  def max_steps_left(self) -> int:
    """Bounds the batches still to come, as if nothing more were left out.

    Returns:
      Batches left in this epoch and in all later ones, cut at `max_steps`.
    """
    num_left = len(self._order) - self._cursor
    per_epoch = -(-self._num_prompts // self._prompts_per_step)
    num_steps = -(-num_left // self._prompts_per_step)
    num_steps += per_epoch * max(self._num_epochs - self._epoch - 1, 0)
    if self._max_steps:
      num_steps = min(num_steps, max(self._max_steps - self._step, 0))
    return num_steps

  def state(self) -> dict[str, Any]:
    """Gives everything that the continuation depends on.

    Returns:
      Plain integers and strings, and numpy arrays (copies).
    """
    return {
      "settings": dict(self._settings),
      "step": self._step,
      "epoch": self._epoch,
      "cursor": self._cursor,
      "is_active": self._is_active.copy(),
      "streak": self._streak.copy(),
      "solved_run": self._solved_run.copy(),
      "last_visit": self._last_visit.copy(),
      "stay_counts": self._stay_counts.copy(),
    }

  def restore(self, state: Mapping[str, Any]) -> None:
    """Continues from a saved state.

    Epochs and steps of the run may differ from the saved run's; everything
    else must be as it was.

    Args:
      state: What `state` gave; arrays may have become lists.

    Raises:
      ValueError: The state belongs to other ids, lengths or settings.
    """
    saved = state["settings"]
    # Sums of the data last: another seed changes generated rows, too.
    for name, value in sorted(
      self._settings.items(), key=lambda item: item[0].endswith("sha256")
    ):
      if name not in saved or saved[name] != value:
        raise ValueError(
          f"the saved sampler state needs {name}={saved.get(name)!r}, got"
          f" {value!r}; resume with the data and settings of the saved run, or"
          " in another --workdir."
        )
    self._step = int(state["step"])
    self._epoch = int(state["epoch"])
    self._cursor = int(state["cursor"])
    self._is_active = np.array(state["is_active"], bool)
    self._streak = np.array(state["streak"], np.int32)
    self._solved_run = np.array(state["solved_run"], np.int32)
    self._last_visit = np.array(state["last_visit"], np.int32)
    self._stay_counts = np.array(state["stay_counts"], np.int64)
    self._order = self._epoch_order()

  def digest(self) -> str:
    """Hashes the state, so that hosts can check that theirs are equal.

    Returns:
      SHA-256 of the state, as 64 hexadecimal digits.
    """
    items = [
      (name, value.tolist() if isinstance(value, np.ndarray) else value)
      for name, value in sorted(self.state().items())
    ]
    return _sha256(repr(items).encode())

  def _begin_epoch(self) -> bool:
    """Chooses the prompts of the next epoch; False when the run is over."""
    if self._epoch + 1 >= self._num_epochs:
      return False
    is_active = self._due(self._epoch + 1)
    if self._reentry == "permanent" and not is_active.any():
      return False
    if self._reentry == "skip_epoch":
      self._streak[~is_active] = 0
    self._is_active = is_active
    self._epoch += 1
    self._cursor = 0
    self._order = self._epoch_order()
    return True

  def _due(self, epoch: int) -> Bool[np.ndarray, " D"]:
    if not self._streak_limit:
      return np.ones_like(self._is_active)
    is_active = self._streak < self._streak_limit
    if self._reentry == "probe":
      is_active |= epoch - self._last_visit >= self._probe_every_epochs
    return is_active

  def _epoch_order(self) -> Int[np.ndarray, " N"]:
    """Orders the active prompts of the current epoch by (seed, epoch) alone."""
    if self._epoch < 0:
      return np.zeros(0, np.int32)
    if not self._is_shuffled:
      return np.flatnonzero(self._is_active).astype(np.int32)
    rng = np.random.default_rng([self._seed, self._epoch])
    # All prompts are shuffled, then the left-out ones removed: the filter
    # does not change the order of the others.
    order = rng.permutation(self._num_prompts).astype(np.int32)
    order = order[self._is_active[order]]
    if self._lengths is None:
      return order
    return _grouped_by_length(order, self._lengths, self._prompts_per_step, rng)


def _grouped_by_length(
  order: Int[np.ndarray, " N"],
  lengths: Int[np.ndarray, " D"],
  num_batch: int,
  rng: np.random.Generator,
) -> Int[np.ndarray, " N"]:
  """Sorts within windows of several batches, then shuffles whole batches."""
  window = num_batch * _WINDOW_BATCHES
  parts = [order[i : i + window] for i in range(0, len(order), window)]
  parts = [part[np.argsort(lengths[part], kind="stable")] for part in parts]
  sorted_order = np.concatenate([np.zeros(0, np.int32), *parts])
  num_full = len(sorted_order) // num_batch
  full = sorted_order[: num_full * num_batch].reshape(num_full, num_batch)
  # The short batch stays last.
  short = sorted_order[num_full * num_batch :]
  return np.concatenate([full[rng.permutation(num_full)].reshape(-1), short])


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()


def _check_ids(ids: Sequence[str], num_lengths: int) -> None:
  if not ids or len(set(ids)) != len(ids):
    raise ValueError(
      f"the sampler needs at least one id and no id twice, got {len(ids)} ids"
      f" of which {len(set(ids))} differ; check the training rows."
    )
  if num_lengths != len(ids):
    raise ValueError(
      f"lengths must have one entry an id, got {num_lengths} for {len(ids)}"
      " ids; encode the prompts of the same examples."
    )


def _check_at_least(name: str, value: int, least: int) -> None:
  if value < least:
    raise ValueError(
      f"{name} must be at least {least}, got {value}; set config.{name}."
    )


def digest(state: Mapping[str, Any]) -> str:
  """Returns 64 hexadecimal digits for the values of `PromptSampler.state`."""
  text = [
    (name, value.tolist() if isinstance(value, np.ndarray) else value)
    for name, value in sorted(state.items())
  ]
  return hashlib.sha256(repr(text).encode()).hexdigest()
