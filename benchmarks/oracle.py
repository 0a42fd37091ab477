"""The gold answers of each benchmark replayed as a model, all items.

    uv run python benchmarks/oracle.py --shared=../shared/data

Runs every item's conversation with the answers that its gold gives, scores the
outcomes, and prints a line a category: items, passes, and which fail. What
fails here no answer can pass, so it bounds every model's score. With
`--variant=name|argument|drop` the answers are spoiled: nothing may pass but
what needs no call. Prints one JSON object last.
"""

import argparse
import json
import pathlib
import sys
import time

from toolrl_jax import types
from toolrl_jax.evaluation import (
  acebench,
  acebench_calls,
  acebench_checker,
  acebench_scores,
  api_bank,
  bamboogle,
  bfcl,
  bfcl_oracle,
  conversation,
)
from toolrl_jax.parsing import tool_calls


def replay(bench, items, reply, style):
  """Takes each conversation to its end with prepared answers.

  Args:
    bench: The benchmark.
    items: Its items.
    reply: From an item and what it asks to the text of an answer.
    style: Layout of the answers.

  Returns:
    Outcomes by item id.
  """
  outcomes = {}
  for item in items:
    talk = bench.converse(item)
    ask = next(talk)
    try:
      while True:
        text = reply(item, ask)
        parsed = tool_calls.parse_completion(text, style=style)
        ask = talk.send(conversation.Answer(text, parsed))
    except StopIteration as end:
      outcomes[item.id] = end.value
  return outcomes


def spoiled(calls, variant):
  """Returns calls with one mistake; "" makes none."""
  if not calls or not variant:
    return tuple(calls)
  first, *rest = calls
  if variant == "name":
    return (first._replace(name=first.name + "_x"), *rest)
  if variant == "argument":
    arguments = {**first.arguments, "no_such_argument": 1}
    return (first._replace(arguments=arguments), *rest)
  return tuple(rest)


def run_bfcl(args):
  """Replays BFCL's gold."""
  bench = bfcl.Bfcl(max_items=args.max_items)

  def reply(item, ask):
    if ask.step > 0:
      return "Done."
    calls = bfcl_oracle.turns(item)[ask.turn]
    return bfcl_oracle.text(spoiled(calls, args.variant))

  try:
    items = bench.items()
    return bench, items, bench.score(replay(bench, items, reply, "native"))
  finally:
    bench.close()


def _acebench_text(item, variant):
  """Returns the answer that an item's gold asks for."""
  gold = item.row["ground_truth"]
  if item.category in acebench_scores.NORMAL:
    first = gold[0] if isinstance(gold, list) else gold
    calls = acebench_checker.gold_calls(first)
    return acebench_calls.render(spoiled(calls, variant))
  if isinstance(gold, str):
    return f'["{gold}"]'
  says = (
    "Missing necessary parameters ({}) for the api ({})"
    if item.category == "special_incomplete"
    else "There is incorrect value ({}) in the parameters ({}) of the conversation"
  )
  return "; ".join(
    says.format(", ".join(map(str, values)), name)
    for name, values in gold.items()
  )


def run_acebench(args):
  """Replays ACEBench's gold; agent items need a policy, not a gold text."""
  bench = acebench.AceBench(
    args.shared / "acebench",
    categories=(*acebench_scores.NORMAL, *acebench_scores.SPECIAL),
    max_items=args.max_items,
  )
  reply = lambda item, ask: _acebench_text(item, args.variant)
  items = bench.items()
  return bench, items, bench.score(replay(bench, items, reply, "native"))


def run_api_bank(args):
  """Replays API-Bank's gold."""
  bench = api_bank.ApiBank(
    str(args.shared / "api_bank"), max_items=args.max_items
  )

  def reply(item, ask):
    gold = item.row["gold"]
    call = types.ToolCall(gold["name"], gold["parameters"])
    calls = spoiled((call,), args.variant)
    # A dropped call leaves words.
    return tool_calls.render_gold(
      types.Gold(calls, None if calls else "no"), style="toolrl"
    )

  items = bench.items()
  return bench, items, bench.score(replay(bench, items, reply, "toolrl"))


def run_bamboogle(args):
  """Replays Bamboogle's answers, closed book."""
  bench = bamboogle.Bamboogle(
    str(args.shared / "bamboogle"), search=None, max_items=args.max_items
  )
  reply = lambda item, ask: "" if args.variant else str(item.row["gold"])
  items = bench.items()
  return bench, items, bench.score(replay(bench, items, reply, "native"))


RUNS = {
  "bfcl": run_bfcl,
  "acebench": run_acebench,
  "api_bank": run_api_bank,
  "bamboogle": run_bamboogle,
}


def main() -> None:
  """Replays what was asked for and prints the passes."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--shared", type=pathlib.Path, default="../shared/data")
  parser.add_argument("--names", default=",".join(RUNS))
  parser.add_argument("--max_items", type=int, default=0, help="a category")
  parser.add_argument("--variant", default="", help="name, argument or drop")
  args = parser.parse_args()
  if args.variant not in ("", "name", "argument", "drop"):
    parser.error(
      f"--variant must be name, argument or drop, got {args.variant!r}"
    )
  passes = {}
  for name in args.names.split(","):
    if name not in RUNS:
      parser.error(f"--names must be some of {', '.join(RUNS)}, got {name!r}")
    start = time.monotonic()
    bench, items, scores = RUNS[name](args)
    by_category = {}
    for item in items:
      by_category.setdefault(item.category, []).append(item.id)
    for category, ids in by_category.items():
      failed = [one for one in ids if not scores.verdicts[one]]
      passes[f"{name}/{category}"] = [len(ids) - len(failed), len(ids)]
      shown = ", ".join(failed[:8]) + (" ..." if len(failed) > 8 else "")
      print(
        f"| {name} | {category} | {len(ids) - len(failed)} of {len(ids)} | {shown} |"
      )
    print(
      f"{name}: {time.monotonic() - start:.0f} s, {bench.headline} "
      f"{scores.table[bench.headline]:.4f}",
      file=sys.stderr,
    )
  print(json.dumps({"variant": args.variant, "passes": passes}))


if __name__ == "__main__":
  main()
