"""Our BFCL verdicts beside those of the package's own handler on Hugging Face.

    uv run toolrl-convert qwen.gguf /tmp/qwen --dtype=float32
    uv run python benchmarks/bfcl_cross_check.py template --model=/tmp/qwen
    uv run toolrl-evaluate --workdir=/tmp/bfcl --config.model.path=/tmp/qwen ...
    uv run python benchmarks/bfcl_cross_check.py compare --model=/tmp/qwen \
      --scores=/tmp/bfcl

`template` gives the checkpoint the chat template that bfcl-eval's QwenFCHandler
writes down, so that both ask the same. `compare` takes the first items of a
single-turn category: the handler makes the prompts in the package's own
environment, transformers answers them greedily in float32 (in the environment
of the peer "trl"), the handler reads the answers and the package's
`eval_runner` judges them. The last line is a JSON object: on how many items the
two verdicts agree, how many answers are equal word for word where neither calls,
and each item where the verdicts differ.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import peer_process

from toolrl_jax.evaluation import bfcl_environment, bfcl_files, records

_PEERS = pathlib.Path(__file__).parent / "peers"
# The one model that the package's list holds when bfcl_upstream.py runs it.
_NAME = "Qwen/Qwen3-0.6B-FC"


def parse_args() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("do", choices=("template", "compare"))
  parser.add_argument(
    "--model", type=pathlib.Path, required=True, help="Hugging Face folder"
  )
  parser.add_argument(
    "--scores", type=pathlib.Path, help="--workdir of toolrl-evaluate"
  )
  parser.add_argument("--category", default="simple_python")
  parser.add_argument("--num_items", type=int, default=50)
  parser.add_argument("--max_tokens", type=int, default=512)
  args = parser.parse_args()
  if args.do == "compare" and args.scores is None:
    parser.error("compare needs --scores")
  return args


def ask(
  python: pathlib.Path, script: str, request: dict, folder: pathlib.Path
) -> dict | list:
  """Runs a script on a request; returns its reply.

  Raises:
    RuntimeError: It failed.
  """
  asked, replied = folder / "request.json", folder / "reply.json"
  asked.write_text(json.dumps(request))
  done = subprocess.run(
    [str(python), str(_PEERS / script), str(asked), str(replied)],
    env={
      "PATH": os.environ["PATH"],
      "HOME": str(folder),
      "BFCL_PROJECT_ROOT": str(folder),
      "HF_HUB_OFFLINE": "1",
    },
    cwd=folder,
    stdout=subprocess.PIPE,
    text=True,
    check=False,
  )
  if done.returncode:
    raise RuntimeError(f"{script} ended with status {done.returncode}")
  return json.loads(replied.read_text())


def handle(
  runner: pathlib.Path,
  folder: pathlib.Path,
  category: str,
  texts: dict[str, str],
) -> dict:
  """Has the package's handler ask items and read what was said."""
  jobs = [{"id": name, "texts": [[text]]} for name, text in texts.items()]
  request = {"do": "single", "category": category, "jobs": jobs}
  return ask(runner, "bfcl_upstream.py", request, folder)


def failed_items(
  runner: pathlib.Path,
  folder: pathlib.Path,
  category: str,
  written: dict[str, str],
) -> set[str]:
  """Returns the items that the package's `eval_runner` fails."""
  file = bfcl_files.path(folder / "result", _NAME, category)
  file.parent.mkdir(parents=True, exist_ok=True)
  rows = [{"id": name, "result": text} for name, text in written.items()]
  file.write_text("".join(json.dumps(row) + "\n" for row in rows))
  (folder / "score").mkdir(exist_ok=True)
  request = {
    "do": "evaluate",
    "categories": [category],
    "result": str(folder / "result"),
    "score": str(folder / "score"),
  }
  reply = ask(runner, "bfcl_upstream.py", request, folder)
  return set(reply["headers"][category]["failed"])


def compare(args: argparse.Namespace, folder: pathlib.Path) -> dict:
  """Returns on how many items both agree, and where they do not."""
  runner = bfcl_environment.ensure(has_runner=True).python
  scores = records.read_scores(args.scores)["benchmarks"]["bfcl"]
  seed = next(iter(scores["by_seed"]))
  ours = {
    name: value == 1
    for name, value in scores["by_seed"][seed]["verdicts"].items()
    if name.rpartition("_")[0] == args.category
  }
  names = list(ours)[: args.num_items]
  asked = handle(runner, folder, args.category, dict.fromkeys(names, ""))
  request = {
    "model": str(args.model.resolve()),
    "prompts": [one["prompt"] for one in asked["replies"]],
    "max_tokens": args.max_tokens,
  }
  python = peer_process.install("trl")
  answers = ask(python, "hf_greedy.py", request, folder)
  texts = {name: one["text"] for name, one in zip(names, answers)}
  read = handle(runner, folder, args.category, texts)["replies"]
  written = {name: one["written"] for name, one in zip(names, read)}
  failed = failed_items(runner, folder, args.category, written)
  lines = (args.scores / "answers" / f"bfcl-seed{seed}.jsonl").read_text()
  outcomes = {
    row["id"]: row["outcome"] for row in map(json.loads, lines.splitlines()[1:])
  }
  differing = [
    {
      "id": name,
      "ours": ours[name],
      "theirs": name not in failed,
      "our_answer": outcomes[name],
      "their_answer": texts[name],
    }
    for name in names
    if ours[name] == (name in failed)
  ]
  return {
    "category": args.category,
    "items": len(names),
    "agree": len(names) - len(differing),
    "ours_right": sum(ours[name] for name in names),
    "theirs_right": len(names) - len(failed),
    # What follows the calls, and all of an answer without one.
    "equal_texts": sum(
      outcomes[name]["turns"][0][0]["text"].strip() == texts[name].strip()
      for name in names
    ),
    "differing": differing,
  }


def write_template(args: argparse.Namespace, folder: pathlib.Path) -> dict:
  """Gives the checkpoint the chat template that the handler quotes."""
  runner = bfcl_environment.ensure(has_runner=True).python
  source = handle(runner, folder, args.category, {})["template"]
  quoted = source.partition('"chat_template":')[2].partition('"""')[0]
  path = args.model / "chat_template.jinja"
  path.write_text(quoted.strip())
  return {"template": str(path)}


def main() -> None:
  """Does what is asked and prints a line of JSON."""
  args = parse_args()
  do = {"template": write_template, "compare": compare}[args.do]
  with tempfile.TemporaryDirectory() as folder:
    try:
      print(json.dumps(do(args, pathlib.Path(folder))))
    except (RuntimeError, ValueError, peer_process.PeerError) as error:
      sys.exit(f"bfcl_cross_check: {error}")


if __name__ == "__main__":
  main()
