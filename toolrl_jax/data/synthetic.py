"""The generated task: requests, tool lists and their gold, from a seed.

A prompt lists three or four tools, each under one of its names, and a user asks
for one call, for two, or for something that no listed tool does. The lists of
the split "eval" never occur in "train" and "sft": a hash of the set of intents
behind a list decides. Also writes demonstrations for supervised training, of
which a stated share is faulty, so that a warm start leaves room to improve.

This module knows neither tokens nor chat templates.
"""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolrl_jax import types
from toolrl_jax.data import synthetic_words

Split = Literal["train", "eval", "sft"]
Kind = Literal["one", "two", "none"]

TWO_CALLS_FRAC = 0.25
NO_TOOL_FRAC = 0.2
# Among the requests no tool fits: those that a missing tool would do.
NEAR_FRAC = 0.3
# One list in so many is held out.
_HELD_OUT_MODULUS = 6
_NUM_TOOLS = (3, 3, 4, 4)

# Share of the demonstrations, from the first, that are all right.
CLEAN_FRAC = 0.85
# Faults, with their shares among the faulty demonstrations; most leave the
# values right.
_FAULTS_ONE = (
  ("repeated_call", 0.4),
  ("missing_parameter", 0.3),
  ("wrong_value", 0.15),
  ("wrong_tool", 0.15),
)
_FAULTS_TWO = (("missing_call", 0.9), ("wrong_value", 0.1))
# Most demonstrations of two calls forget one: a habit that greedy decoding
# follows and that rewards can break.
FAULT_FRAC_ONE = 0.7
FAULT_FRAC_TWO = 0.75


def generate(num: int, *, split: Split, seed: int) -> list[types.Example]:
  """Generates examples; a pure function of its arguments.

  Example i depends on (split, seed, i) alone, so a longer set starts with the
  shorter one.

  Args:
    num: Examples, at least 0.
    split: "train" and "sft" share tool lists, "eval" has lists of its own.
    seed: Any integer; another seed gives fresh examples.

  Returns:
    `num` examples with ids `synthetic-<split>-<seed>-<i>`.

  Raises:
    ValueError: `num` is negative.
  """
  if num < 0:
    raise ValueError(f"num must be at least 0, got {num}; ask for fewer.")
  return [_example(split, seed, index) for index in range(num)]


def kind(example: types.Example) -> Kind:
  """Says what an example asks for: "one" call, "two", or "none".

  Args:
    example: A generated example.

  Returns:
    The kind.
  """
  return ("none", "one", "two")[len(example.gold.calls)]


def is_held_out(intents: Sequence[str]) -> bool:
  """Says whether a set of intents belongs to the held-out tool lists.

  Args:
    intents: Keys of `synthetic_words.INTENTS`, in any order.

  Returns:
    True for lists of the split "eval" only.
  """
  digest = hashlib.sha256(",".join(sorted(intents)).encode()).digest()
  return digest[0] % _HELD_OUT_MODULUS == 0


def _example(split: Split, seed: int, index: int) -> types.Example:
  # A string seeds through SHA-512, the same on every platform.
  rng = random.Random(f"{split}/{seed}/{index}")
  intents = _draw_intents(rng, is_eval=split == "eval")
  tools, parameters = {}, {}
  for intent in intents:
    tools[intent], parameters[intent] = _draw_tool(rng, intent)
  draw = rng.random()
  if draw < NO_TOOL_FRAC:
    request = _unfit_request(rng, intents)
    gold = types.Gold(response=synthetic_words.REFUSAL)
  else:
    num_calls = 2 if draw < NO_TOOL_FRAC + TWO_CALLS_FRAC else 1
    sentences, calls = [], []
    for intent in rng.sample(intents, num_calls):
      sentence, values = _draw_request(rng, intent)
      sentences.append(sentence)
      names = parameters[intent]
      arguments = {names[slot]: value for slot, value in values.items()}
      calls.append(types.ToolCall(tools[intent]["name"], arguments))
    request = rng.choice(synthetic_words.JOINTS).join(sentences)
    gold = types.Gold(calls=tuple(calls))
  return types.Example(
    id=f"synthetic-{split}-{seed}-{index}",
    messages=({"role": "user", "content": request},),
    tools=tuple(tools.values()),
    gold=gold,
  )


def _draw_intents(rng: random.Random, *, is_eval: bool) -> list[str]:
  while True:
    size = rng.choice(_NUM_TOOLS)
    intents = rng.sample(list(synthetic_words.INTENTS), size)
    if is_held_out(intents) == is_eval:
      return intents


def _draw_tool(
  rng: random.Random, intent: str
) -> tuple[dict[str, Any], dict[str, str]]:
  """Draws a tool document, and the parameter name of each slot."""
  words = synthetic_words.INTENTS[intent]
  properties, names = {}, {}
  for slot in words.slots:
    vocabulary = synthetic_words.SLOTS[slot]
    names[slot] = rng.choice(vocabulary.parameters)
    is_number = isinstance(vocabulary.values[0], int)
    properties[names[slot]] = {
      "type": "integer" if is_number else "string",
      "description": vocabulary.description,
    }
  document = {
    "name": rng.choice(words.names),
    "description": rng.choice(words.descriptions),
    "parameters": {
      "type": "object",
      "properties": properties,
      "required": list(properties),
    },
  }
  return document, names


def _draw_request(
  rng: random.Random, intent: str
) -> tuple[str, dict[str, str | int]]:
  """Draws a sentence that asks for an intent, and the value of each slot."""
  words = synthetic_words.INTENTS[intent]
  values: dict[str, str | int] = {}
  for slot in words.slots:
    # Two cities or currencies of one request always differ.
    free = [
      value
      for value in synthetic_words.SLOTS[slot].values
      if value not in values.values()
    ]
    values[slot] = rng.choice(free)
  return rng.choice(words.requests).format(**values), values


def _unfit_request(rng: random.Random, intents: Sequence[str]) -> str:
  """Draws a request that none of the listed intents covers."""
  if rng.random() < NEAR_FRAC:
    absent = [name for name in synthetic_words.INTENTS if name not in intents]
    return _draw_request(rng, rng.choice(absent))[0]
  values = {
    slot: rng.choice(vocabulary.values)
    for slot, vocabulary in synthetic_words.SLOTS.items()
  }
  return rng.choice(synthetic_words.FAR_REQUESTS).format(**values)


def demonstrations(
  examples: Sequence[types.Example],
  *,
  seed: int,
  clean_frac: float = CLEAN_FRAC,
  fault_frac_one: float = FAULT_FRAC_ONE,
  fault_frac_two: float = FAULT_FRAC_TWO,
) -> list[str]:
  """Writes one target answer an example, first right ones, then faulty ones.

  Copying is learned from right targets; the faulty ones at the end make the
  warm start a noisy model with room to improve, so the rows are meant to be
  read in order. A fault drops one of two calls, gives a wrong value, leaves a
  parameter out, calls another listed tool, or calls twice. Targets of requests
  that no tool fits are always right, so that a warm start refuses where it
  should.

  Args:
    examples: Generated examples.
    seed: Of the choice of faults; target i depends on (seed, id of example i)
      and on whether i is beyond the clean rows.
    clean_frac: Share of the rows, from the first, without any fault, in [0, 1].
    fault_frac_one: Share of faulty targets among the later examples with one
      call, in [0, 1].
    fault_frac_two: The same for two calls.

  Returns:
    Target texts in the ToolRL format, parallel to `examples`.

  Raises:
    ValueError: A share is outside [0, 1].
  """
  shares = {"none": 0.0, "one": fault_frac_one, "two": fault_frac_two}
  for share in (clean_frac, *shares.values()):
    if not 0.0 <= share <= 1.0:
      raise ValueError(
        "clean_frac, fault_frac_one and fault_frac_two must be in [0, 1], got"
        f" {share}; give a share."
      )
  num_clean = round(clean_frac * len(examples))
  targets = []
  for position, example in enumerate(examples):
    calls = list(example.gold.calls)
    rng = random.Random(f"fault/{seed}/{example.id}")
    if position >= num_clean and rng.random() < shares[kind(example)]:
      calls = _faulty_calls(rng, example)
    targets.append(render(calls))
  return targets


def render(calls: Sequence[types.ToolCall]) -> str:
  """Writes an answer in the ToolRL format with JSON without blanks.

  The thought names the tools to call, which plans them before they are filled.

  Args:
    calls: Calls in order; empty writes the refusal.

  Returns:
    The answer text.
  """
  if not calls:
    refusal = synthetic_words.REFUSAL
    return f"<think>none</think>\n<response>{refusal}</response>"
  plan = ", ".join(call.name for call in calls)
  lines = [
    json.dumps(
      {"name": call.name, "parameters": dict(call.arguments)},
      separators=(",", ":"),
    )
    for call in calls
  ]
  body = "\n".join(lines)
  return f"<think>{plan}</think>\n<tool_call>\n{body}\n</tool_call>"


def _faulty_calls(
  rng: random.Random, example: types.Example
) -> list[types.ToolCall]:
  calls = list(example.gold.calls)
  faults = _FAULTS_TWO if len(calls) == 2 else _FAULTS_ONE
  names, shares = zip(*faults, strict=True)
  fault = rng.choices(names, shares)[0]
  place = rng.randrange(len(calls))
  call = calls[place]
  if fault == "missing_call":
    # Mostly the later request is forgotten.
    del calls[1 if rng.random() < 0.8 else 0]
  elif fault == "wrong_tool":
    calls[place] = _made_up_call(rng, example.tools, call.name)
  elif fault == "repeated_call":
    calls.append(call)
  elif fault == "missing_parameter" and len(call.arguments) > 1:
    dropped = rng.choice(list(call.arguments))
    kept = {k: v for k, v in call.arguments.items() if k != dropped}
    calls[place] = call._replace(arguments=kept)
  else:
    name = rng.choice(list(call.arguments))
    wrong = _other_value(rng, call.arguments[name])
    calls[place] = call._replace(arguments={**call.arguments, name: wrong})
  return calls


def _other_value(rng: random.Random, value: str | int) -> str | int:
  for vocabulary in synthetic_words.VOCABULARIES:
    if value in vocabulary:
      return rng.choice([other for other in vocabulary if other != value])
  raise ValueError(f"value {value!r} must come from a generated example.")


def _made_up_call(
  rng: random.Random, tools: Sequence[Mapping[str, Any]], besides: str
) -> types.ToolCall:
  """Calls another listed tool with values that nobody asked for."""
  tool = rng.choice([tool for tool in tools if tool["name"] != besides])
  values = {
    parameter: slot.values
    for slot in synthetic_words.SLOTS.values()
    for parameter in slot.parameters
  }
  names = tool["parameters"]["properties"]
  return types.ToolCall(
    tool["name"], {name: rng.choice(values[name]) for name in names}
  )
