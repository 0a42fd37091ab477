"""Verdicts and averages of ACEBench.

From items and outcomes to the table. Scores are given under two rules, which
differ in one thing: upstream takes all white space out of an answer of the two
multi-turn categories before it reads it, and so spoils right answers whose
strings hold a blank that counts; the fixed rule reads the answer as it is. The
headline takes the fixed rule.

    overall = 0.578 normal + 0.2676 special + 0.1545 agent

each the plain mean over its categories (12, 3, 2). The two multi-turn
categories count dialogues, right when all their prompts are. Outcomes may hold
anything: what cannot be read is wrong.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolrl_jax import types
from toolrl_jax.evaluation import (
  acebench_calls,
  acebench_checker,
  acebench_states,
  benchmark,
)

DIALOGUES = ("normal_multi_turn_user_adjust", "normal_multi_turn_user_switch")
NORMAL = (
  "normal_single_turn_single_function",
  "normal_single_turn_parallel_function",
  *DIALOGUES,
  "normal_similar_api",
  "normal_preference",
  "normal_atom_bool",
  "normal_atom_enum",
  "normal_atom_number",
  "normal_atom_list",
  "normal_atom_object_deep",
  "normal_atom_object_short",
)
SPECIAL = ("special_incomplete", "special_error_param", "special_irrelevant")
AGENT = ("agent_multi_step", "agent_multi_turn")
CATEGORIES = (*NORMAL, *SPECIAL, *AGENT)
_GROUPS = {
  "normal": (0.578, NORMAL),
  "special": (0.2676, SPECIAL),
  "agent": (0.1545, AGENT),
}
OVERALL = "overall"
OVERALL_WITHOUT_USER = "overall_without_agent_multi_turn"
OVERALL_OF_PART = "overall_of_a_part"

Outcome = Mapping[str, Any]
Verdict = Callable[[benchmark.Item, Outcome], float]


def score(
  items: Sequence[benchmark.Item],
  outcomes: Mapping[str, Outcome],
  *,
  headline: str = OVERALL,
) -> benchmark.Scores:
  """Scores outcomes; an item without one counts as failed.

  Args:
    items: All items that count.
    outcomes: Item id to outcome.
    headline: Name of the overall figure.

  Returns:
    The scores. A prompt of a dialogue has the dialogue's verdict.
  """
  fixed = _judge(items, outcomes, is_right)
  upstream = _judge(items, outcomes, is_right_upstream)
  table = _averages(items, fixed, num_digits=None, headline=headline)
  rounded = _averages(items, upstream, num_digits=3, headline=headline)
  for key, value in rounded.items():
    # Elsewhere the two rules are one.
    if key in (*DIALOGUES, "normal") or key.startswith(OVERALL):
      table[f"{key}_upstream"] = value
  for category in DIALOGUES:
    ids = [item.id for item in items if item.category == category]
    if ids:
      table[f"{category}_prompts"] = _mean([fixed[one] for one in ids])
      table[f"{category}_prompts_upstream"] = _mean([upstream[i] for i in ids])
  for suffix, verdict in _AGENT_READINGS.items():
    values = _judge(items, outcomes, verdict)
    for category in AGENT:
      ids = [item.id for item in items if item.category == category]
      if ids:
        table[f"{category}_{suffix}"] = _mean([values[one] for one in ids])
  verdicts = {
    one: min(fixed[other] for other in unit)
    for category in CATEGORIES
    for unit in _units(items, category)
    for one in unit
  }
  counts = Counter(item.category for item in items)
  return benchmark.Scores(verdicts, table, counts, _notes(items, outcomes))


def is_right(item: benchmark.Item, outcome: Outcome) -> bool:
  """Judges one outcome by the fixed rule.

  Args:
    item: The item, with its gold.
    outcome: What its conversation returned.

  Returns:
    Whether this item alone is right, whatever the rest of its dialogue.
  """
  gold = item.row["ground_truth"]
  if item.category in AGENT:
    return acebench_states.is_end_state(_states(outcome), gold)
  text = outcome.get("text")
  if not isinstance(text, str):
    return False
  if item.category in SPECIAL:
    return acebench_checker.is_special_right(text, gold, item.category)
  return _has_right_calls(item, outcome, text)


def is_right_upstream(item: benchmark.Item, outcome: Outcome) -> bool:
  """Judges one outcome as upstream does, white space and all.

  Args:
    item: The item, with its gold.
    outcome: What its conversation returned.

  Returns:
    Whether this item alone is right.
  """
  text = outcome.get("text")
  if item.category in DIALOGUES and isinstance(text, str):
    return _has_right_calls(item, outcome, "".join(text.split()))
  return is_right(item, outcome)


def read(text: str, category: str) -> tuple[types.ToolCall, ...] | None:
  """Reads a bracketed answer as upstream does, but for the white space.

  Args:
    text: The answer without its thinking.
    category: A normal or special category; in the two multi-turn ones the
      whole text must be the list, elsewhere its first bracketed block is.

  Returns:
    The calls, or None.
  """
  if category in DIALOGUES:
    return acebench_calls.read(text)
  return acebench_calls.read_first_block(text)


def _has_right_calls(item: benchmark.Item, outcome: Outcome, text: str) -> bool:
  """Checks the calls of an answer to a normal item."""
  calls: Sequence[types.ToolCall] | None
  if outcome.get("form") == "tool_call":
    calls = _block_calls(outcome.get("calls"))
  else:
    calls = read(text, item.category)
  return calls is not None and acebench_checker.is_normal_right(
    calls, item.row["ground_truth"], item.row["function"]
  )


def _block_calls(records: Any) -> list[types.ToolCall] | None:
  """Reads back the recorded calls of a `<tool_call>` answer."""
  calls = []
  for one in records if isinstance(records, list) else ():
    match one:
      case {"name": str(name), "arguments": dict(arguments)}:
        calls.append(types.ToolCall(name, arguments))
      case _:
        return None
  return calls or None


def _states(outcome: Outcome) -> list[dict[str, dict[str, Any]]]:
  """Takes the end states; none if they are not of the form that is written."""
  states = outcome.get("states")
  if not isinstance(states, list):
    return []
  is_whole = all(
    isinstance(state, dict)
    and all(isinstance(one, dict) for one in state.values())
    for state in states
  )
  return states if is_whole else []


def _process(outcome: Outcome) -> list[str]:
  """Takes the messages that were to be executed."""
  process = outcome.get("process")
  texts = process if isinstance(process, list) else []
  return [text for text in texts if isinstance(text, str)]


def _process_accuracy(item: benchmark.Item, outcome: Outcome) -> float:
  """Upstream's process accuracy: a right end state makes it 1."""
  if item.category not in AGENT or is_right(item, outcome):
    return 1.0
  return acebench_states.process_accuracy(
    _process(outcome), item.row["mile_stone"]
  )


def _parsed_process_accuracy(item: benchmark.Item, outcome: Outcome) -> float:
  if item.category not in AGENT:
    return 1.0
  return acebench_states.parsed_process_accuracy(
    _process(outcome), item.row["mile_stone"]
  )


def _is_exact(item: benchmark.Item, outcome: Outcome) -> bool:
  return item.category in AGENT and acebench_states.is_exact_end_state(
    _states(outcome), item.row["ground_truth"]
  )


# Further readings of the agent categories, by the suffix of their metric.
_AGENT_READINGS: Mapping[str, Verdict] = {
  "process": _process_accuracy,
  "process_parsed": _parsed_process_accuracy,
  "exact": _is_exact,
}


def _judge(
  items: Sequence[benchmark.Item],
  outcomes: Mapping[str, Outcome],
  verdict: Verdict,
) -> dict[str, float]:
  """Applies one rule to every item."""
  values = {}
  for item in items:
    try:
      values[item.id] = float(verdict(item, outcomes.get(item.id, {})))
    except Exception:  # noqa: BLE001 - whatever a model wrote, it is wrong
      values[item.id] = 0.0
  return values


def _averages(
  items: Sequence[benchmark.Item],
  verdicts: Mapping[str, float],
  *,
  num_digits: int | None,
  headline: str,
) -> dict[str, float]:
  """Averages items to categories, groups and the whole.

  Upstream rounds at every stage, the fixed rule (None) at the end only.
  """
  table = {}
  for category in CATEGORIES:
    units = _units(items, category)
    if units:
      values = [min(verdicts[one] for one in unit) for unit in units]
      table[category] = _round(_mean(values), num_digits)
  overall = 0.0
  for group, (weight, members) in _GROUPS.items():
    values = [table[one] for one in members if one in table]
    if not values:
      continue  # Nothing of it was run; it adds nothing to the overall figure.
    table[group] = _round(_mean(values), num_digits)
    overall += weight * table[group]
  # The weights add up to 1.0001.
  table[headline] = min(round(overall, 3), 1.0)
  return table


def dialogue(item: benchmark.Item) -> str:
  """Names what counts as one: the item itself, or its dialogue.

  The id of a prompt is its dialogue's, "_" and its number.
  """
  is_prompt = item.category in DIALOGUES
  return item.id.rpartition("_")[0] if is_prompt else item.id


def _units(items: Sequence[benchmark.Item], category: str) -> list[list[str]]:
  """Groups a category's items to what counts as one."""
  units: dict[str, list[str]] = {}
  for item in items:
    if item.category == category:
      units.setdefault(dialogue(item), []).append(item.id)
  return list(units.values())


def _mean(values: Sequence[float]) -> float:
  return sum(values) / len(values) if values else 0.0


def _round(value: float, num_digits: int | None) -> float:
  return value if num_digits is None else round(value, num_digits)


def _notes(
  items: Sequence[benchmark.Item], outcomes: Mapping[str, Outcome]
) -> tuple[str, ...]:
  """Says what a reader of the table has to know."""
  notes = []
  categories = {item.category for item in items}
  if AGENT[0] in categories and AGENT[1] not in categories:
    notes.append(
      "agent_multi_turn (30 items) was not run, for want of a user simulator; "
      "agent is agent_multi_step alone, and the overall figure says so."
    )
  notes.append(_unmet_gold(items))
  forms = Counter(str(one.get("form")) for one in outcomes.values())
  read_as = ", ".join(f"{form} {n}" for form, n in sorted(forms.items()))
  notes.append(f"Forms that were read: {read_as or 'none'}.")
  return tuple(notes)


def _unmet_gold(items: Sequence[benchmark.Item]) -> str:
  """Names the normal items whose gold does not pass the check itself."""
  unmet = []
  for item in items:
    if item.category in NORMAL:
      gold = item.row["ground_truth"]
      first = gold[0] if isinstance(gold, list) else gold
      calls = acebench_checker.gold_calls(first)
      documents = item.row["function"]
      if not acebench_checker.is_normal_right(calls, gold, documents):
        unmet.append(item.id)
  return f"Items whose own gold does not pass: {', '.join(unmet) or 'none'}."
