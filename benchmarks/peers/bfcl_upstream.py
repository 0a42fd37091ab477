"""Runs the package's own loop and evaluation program, for comparison.

A script for the environment that holds bfcl-eval with all that its Qwen
handler and `eval_runner` import. Prepared texts stand for the model.

    python bfcl_upstream.py REQUEST.json REPLY.json
"""

import copy
import importlib
import inspect
import json
import pathlib
import sys
import types


def load_handler():
  """Imports the Qwen handler behind a list with one model."""
  stand_in = types.ModuleType("bfcl_eval.constants.model_config")
  stand_in.MODEL_CONFIG_MAPPING = {}
  sys.modules[stand_in.__name__] = stand_in
  qwen_fc = importlib.import_module(
    "bfcl_eval.model_handler.local_inference.qwen_fc"
  )
  stand_in.MODEL_CONFIG_MAPPING["Qwen/Qwen3-0.6B-FC"] = types.SimpleNamespace(
    model_name="Qwen/Qwen3-0.6B",
    display_name="Qwen3-0.6B (FC)",
    url="",
    org="",
    license="",
    model_handler=qwen_fc.QwenFCHandler,
    input_price=None,
    output_price=None,
    is_fc_model=True,
    underscore_to_dot=False,
  )
  return qwen_fc.QwenFCHandler


def ask_script(self, inference_data):
  """Stands in for the handler's query: says the next prepared text."""
  messages = inference_data["message"]
  turn = sum(message["role"] == "user" for message in messages) - 1
  step = 0
  for message in reversed(messages):
    if message["role"] == "user":
      break
    step += message["role"] == "assistant"
  # The history only grows, so its lengths tell what was asked.
  self.lengths.append(len(messages))
  self.history = inference_data
  self.prompts.append(self._format_prompt(messages, inference_data["function"]))
  text = self.texts[turn][min(step, len(self.texts[turn]) - 1)]
  usage = types.SimpleNamespace(prompt_tokens=1, completion_tokens=1)
  choice = types.SimpleNamespace(text=text)
  return types.SimpleNamespace(choices=[choice], usage=usage), 0.1


def run_loop(request):
  """Drives the package's loop and gives its verdicts."""
  handler_class = load_handler()
  handler_class._query_prompting = ask_script
  runner = importlib.import_module("bfcl_eval.eval_checker.eval_runner")
  utils = importlib.import_module("bfcl_eval.utils")
  handler = handler_class("script", 0.0, "script-FC", is_fc_model=True)
  replies, loaded = [], {}
  for number, job in enumerate(request["jobs"]):
    category = job["id"].rsplit("_", 1)[0]
    if category not in loaded:
      rows = utils.load_dataset_entry(category)
      golds = utils.load_ground_truth_entry(category)
      loaded[category] = {
        row["id"]: (row, gold["ground_truth"]) for row, gold in zip(rows, golds)
      }
    row, gold = loaded[category][job["id"]]
    # The package's executor keeps instances under this name.
    handler.model_name_underline_replaced = f"script{number}"
    handler.texts, handler.lengths = job["texts"], []
    handler.prompts = []
    entry = copy.deepcopy(row)
    written, _ = handler.inference(
      entry, include_input_log=False, exclude_state_log=True
    )
    verdict = runner._evaluate_single_multi_turn_entry(
      handler,
      job["id"],
      written,
      gold,
      copy.deepcopy(row),
      f"script{number}",
      category,
    )
    replies.append(
      {
        "lengths": handler.lengths,
        "prompts": handler.prompts,
        "template": inspect.getsource(handler_class._format_prompt),
        "messages": handler.history["message"],
        "functions": handler.history["function"],
        "written": written,
        "is_valid": verdict["valid"],
      }
    )
  return replies


def run_single(request):
  """Has the handler ask single-turn items, and gives what it writes down."""
  handler_class = load_handler()
  handler_class._query_prompting = ask_script
  utils = importlib.import_module("bfcl_eval.utils")
  handler = handler_class("script", 0.0, "script-FC", is_fc_model=True)
  rows = {
    row["id"]: row for row in utils.load_dataset_entry(request["category"])
  }
  replies = []
  for job in request["jobs"]:
    handler.texts, handler.lengths, handler.prompts = job["texts"], [], []
    written, _ = handler.inference(
      copy.deepcopy(rows[job["id"]]),
      include_input_log=False,
      exclude_state_log=True,
    )
    replies.append({"prompt": handler.prompts[0], "written": written})
  return {
    "replies": replies,
    "template": inspect.getsource(handler_class._format_prompt),
  }


def evaluate(request):
  """Runs the package's evaluation over result files."""
  load_handler()
  runner = importlib.import_module("bfcl_eval.eval_checker.eval_runner")
  runner.main(
    ["Qwen/Qwen3-0.6B-FC"],
    request["categories"],
    request["result"],
    request["score"],
    partial_eval=True,
  )
  headers = {}
  for file in pathlib.Path(request["score"]).rglob("*_score.json"):
    first = file.read_text(encoding="utf-8").splitlines()
    category = file.name.removeprefix("BFCL_v4_").removesuffix("_score.json")
    headers[category] = {
      **json.loads(first[0]),
      "failed": [json.loads(line)["id"] for line in first[1:]],
    }
  overall = pathlib.Path(request["score"], "data_overall.csv").read_text()
  return {"headers": headers, "overall": overall}


def main():
  """Reads the two paths of the command line."""
  request = json.loads(pathlib.Path(sys.argv[1]).read_text())
  kinds = {"loop": run_loop, "single": run_single, "evaluate": evaluate}
  reply = kinds[request["do"]](request)
  pathlib.Path(sys.argv[2]).write_text(json.dumps(reply))


if __name__ == "__main__":
  main()
