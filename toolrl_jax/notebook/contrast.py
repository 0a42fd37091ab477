"""Which rollouts selection keeps, and which prompts the filter leaves out.

From the rewards of sampled groups to figures. The choice itself is made by
`training.groups` and `data.sampler`, as in a run.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from plotly import graph_objects as go
from plotly import subplots

from toolrl_jax.data import sampler
from toolrl_jax.notebook import answers as answers_lib
from toolrl_jax.notebook import tables
from toolrl_jax.training import groups

RULES: tuple[groups.Rule, ...] = ("max_variance", "stratified", "random")
REENTRIES: tuple[sampler.Reentry, ...] = ("skip_epoch", "permanent", "probe")


class Kept(NamedTuple):
  """What a rule keeps of every group.

  Attributes:
    rule: Its name.
    is_kept: Whether each rollout is kept, bool [B, G].
    advantage: Advantage of each kept rollout, float32 [B, G]; 0 elsewhere.
    weight: Weight of each kept rollout, float32 [B, G]; 0 elsewhere.
  """

  rule: groups.Rule
  is_kept: Bool[np.ndarray, "B G"]
  advantage: Float[np.ndarray, "B G"]
  weight: Float[np.ndarray, "B G"]


class Visits(NamedTuple):
  """Which prompts took part in which epoch.

  Attributes:
    reentry: The rule by which prompts come back.
    is_visited: Whether the prompt was rolled out, bool [E, B].
    is_solved: Whether all its rollouts were right then, bool [E, B].
  """

  reentry: sampler.Reentry
  is_visited: Bool[np.ndarray, "E B"]
  is_solved: Bool[np.ndarray, "E B"]


def keep(
  answers: answers_lib.Answers,
  *,
  size: int,
  rule: groups.Rule,
  seed: int = 0,
) -> Kept:
  """Chooses the rollouts of each group that an update would compute.

  Args:
    answers: Groups of completions, two or more a prompt.
    size: Rollouts kept a group (S).
    rule: How they are chosen.
    seed: Of the ties and random choices.

  Returns:
    What is kept.

  Raises:
    ValueError: `size` does not fit the groups.
  """
  reward = np.asarray(answers.parts.total)
  chosen = groups.keep_and_weigh(
    reward,
    np.asarray(answers.parts.success),
    np.ones(len(reward), bool),
    jax.random.key(seed),
    options=groups.GroupOptions(keep=size, rule=rule),
  )
  indices = np.asarray(chosen.indices)
  spread = lambda x: _put(np.zeros(reward.shape, np.float32), indices, x)
  return Kept(
    rule,
    _put(np.zeros(reward.shape, bool), indices, True),
    spread(chosen.advantage),
    spread(chosen.weight),
  )


def _put(array: np.ndarray, indices: Int[np.ndarray, "B S"], values):
  np.put_along_axis(array, indices, np.asarray(values, array.dtype), axis=1)
  return array


def keep_chart(answers: answers_lib.Answers, kept: Sequence[Kept]) -> go.Figure:
  """Draws the rewards of each group, and a ring where a rule keeps one.

  Args:
    answers: Groups of completions.
    kept: What each rule keeps, a panel each.

  Returns:
    A row a prompt; rollouts from the lowest reward to the highest.
  """
  reward = np.asarray(answers.parts.total)
  order = np.argsort(reward, axis=1, kind="stable")
  sort = lambda x: np.take_along_axis(np.asarray(x), order, axis=1)
  figure = subplots.make_subplots(
    rows=1,
    cols=len(kept),
    shared_yaxes=True,
    subplot_titles=[one.rule for one in kept],
    horizontal_spacing=0.03,
  )
  for column, one in enumerate(kept, start=1):
    figure.add_heatmap(
      z=sort(reward), coloraxis="coloraxis", xgap=2, ygap=2,
      hovertemplate="reward %{z:.2f}<extra></extra>", row=1, col=column,
    )  # fmt: skip
    rows, places = np.nonzero(sort(one.is_kept))
    figure.add_scatter(
      x=places, y=rows, mode="markers", showlegend=False, hoverinfo="skip",
      marker={
        "symbol": "circle-open", "size": 12, "color": "black",
        "line": {"width": 2.5},
      },
      row=1, col=column,
    )  # fmt: skip
  figure.update_layout(
    title="Rewards of each group; a ring marks what is kept",
    template="none",
    height=140 + 26 * len(reward),
    coloraxis={"colorscale": "RdYlGn", "colorbar": {"title": "reward"}},
    margin={"l": 58, "r": 14, "t": 80, "b": 48},
    paper_bgcolor="white",
  )
  figure.update_xaxes(
    title="rollouts, by reward", showticklabels=False, zeroline=False, ticks=""
  )
  figure.update_yaxes(title="prompt", col=1)
  return figure.update_yaxes(autorange="reversed", dtick=1, zeroline=False)


def keep_table(
  answers: answers_lib.Answers, kept: Sequence[Kept]
) -> tables.Table:
  """Lists what each rule keeps in numbers, over the groups with contrast.

  Args:
    answers: Groups of completions.
    kept: What each rule keeps.

  Returns:
    A row a rule.
  """
  reward = np.asarray(answers.parts.total)
  success = np.asarray(answers.parts.success)
  has_contrast = np.ptp(reward, axis=1) > 0
  rows = []
  for one in kept:
    size = int(one.is_kept[0].sum())
    chosen = reward[one.is_kept].reshape(-1, size)[has_contrast]
    right = success[one.is_kept].reshape(-1, size)[has_contrast]
    rows.append(
      (
        one.rule,
        f"{size} of {reward.shape[1]}",
        _mean(chosen.var(axis=1)),
        _mean(right),
        int((np.ptp(chosen, axis=1) == 0).sum()),
      )
    )
  header = (
    "rule", "kept", "variance of the kept rewards", "share of right ones",
    "groups left without contrast",
  )  # fmt: skip
  return tables.table(
    header,
    rows,
    f"{has_contrast.sum()} of {len(reward)} groups have contrast; the others "
    "have no gradient and are not computed",
  )


def _mean(x: np.ndarray) -> float | None:
  return float(x.mean()) if x.size else None


def replay(
  right_frac: Float[np.ndarray, " B"],
  *,
  group_size: int,
  streak: int,
  reentry: sampler.Reentry,
  num_epochs: int,
  seed: int = 0,
) -> Visits:
  """Runs the sampler over epochs for prompts that are as hard as measured.

  A visit is solved with probability p^G, p being the share of right rollouts
  of the prompt. Training would raise p; here it stays.

  Args:
    right_frac: p of each prompt, in [0, 1].
    group_size: Rollouts a visit (G).
    streak: Solved visits after which a prompt is left out; 0: never.
    reentry: How a prompt comes back.
    num_epochs: Epochs (E).
    seed: Of the chances; they are the same under every rule.

  Returns:
    Who took part.
  """
  num_prompts = len(right_frac)
  order = sampler.PromptSampler(
    [str(i) for i in range(num_prompts)],
    prompts_per_step=num_prompts,
    streak=streak,
    reentry=reentry,
    num_epochs=num_epochs,
    seed=seed,
  )
  chance = np.random.default_rng(seed).random((num_epochs, num_prompts))
  would_solve = chance < np.asarray(right_frac) ** group_size
  is_visited = np.zeros((num_epochs, num_prompts), bool)
  while (batch := order.next_batch()) is not None:
    is_visited[batch.epoch, batch.indices] = True
    order.observe(batch.indices, would_solve[batch.epoch, batch.indices])
  return Visits(reentry, is_visited, is_visited & would_solve)


def visits_chart(visits: Sequence[Visits]) -> go.Figure:
  """Draws which prompts take part in which epoch, a panel a rule.

  Args:
    visits: From `replay`, of the same prompts.

  Returns:
    Grey: left out; red: visited and not solved; green: solved.
  """
  figure = subplots.make_subplots(
    rows=1,
    cols=len(visits),
    shared_yaxes=True,
    horizontal_spacing=0.03,
    subplot_titles=[
      f"{one.reentry}: {1 - one.is_visited.mean():.0%} saved" for one in visits
    ],
  )
  for column, one in enumerate(visits, start=1):
    state = one.is_visited.astype(int) + one.is_solved
    figure.add_heatmap(
      z=state.T, coloraxis="coloraxis", xgap=2, ygap=2, row=1, col=column,
      hovertemplate="epoch %{x}, prompt %{y}<extra></extra>",
    )  # fmt: skip
  states: Mapping[str, str] = {
    "left out": "#d7dbdf", "not solved": "#d9825b", "solved": "#4c9f70",
  }  # fmt: skip
  colors = list(states.values())
  figure.update_layout(
    title="Who takes part in which epoch",
    template="none",
    height=140 + 26 * visits[0].is_visited.shape[1],
    coloraxis={
      "cmin": -0.5,
      "cmax": 2.5,
      "colorscale": [
        (edge / 3, colors[i]) for i in range(3) for edge in (i, i + 1)
      ],
      "colorbar": {"tickvals": [0, 1, 2], "ticktext": list(states)},
    },
    margin={"l": 58, "r": 14, "t": 80, "b": 48},
    paper_bgcolor="white",
  )
  figure.update_xaxes(title="epoch", dtick=1, zeroline=False)
  figure.update_yaxes(title="prompt", col=1)
  return figure.update_yaxes(autorange="reversed", dtick=1, zeroline=False)
