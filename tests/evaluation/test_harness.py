"""The harness's adapter: values by hand, and those of its own backend.

Needs the optional package lm_eval; without it only the message about that is
tested.
"""

import importlib.util
import json
import math
import pathlib

import numpy as np
import pytest
import tokenizers
import transformers

from toolrl_jax.evaluation import harness

_HAS_PACKAGE = importlib.util.find_spec("lm_eval") is not None
needs_package = pytest.mark.skipif(
  not _HAS_PACKAGE, reason=f"needs lm_eval=={harness.VERSION}"
)
_CHOICE = {
  "doc_to_choice": "{{choices}}",
  "doc_to_target": "{{gold}}",
  "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
_ROLLING = {
  "doc_to_target": "{{question}}",
  "metric_list": [{"metric": "word_perplexity"}],
}
_UNTIL = {
  "doc_to_target": "{{gold}}",
  "generation_kwargs": {"until": ["."], "max_gen_toks": 8},
  "metric_list": [{"metric": "exact_match"}],
}


def _letters():
  """A tokenizer with one token a letter, its code point; 256 is the end."""
  vocabulary = {chr(i): i for i in range(256)} | {"<end>": 256}
  model = tokenizers.models.WordLevel(vocabulary, unk_token="?")
  letters = tokenizers.Tokenizer(model)
  letters.pre_tokenizer = tokenizers.pre_tokenizers.Split(
    tokenizers.Regex(r"[\s\S]"), "isolated"
  )
  letters.decoder = tokenizers.decoders.Fuse()
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=letters, eos_token="<end>"
  )


_MC2 = {"question": "Is it?"} | {
  f"mc{n}_targets": {"choices": ["Yes", "No", "Y"], "labels": [1, n - 1, 0]}
  for n in (1, 2)
}
# One row for each of the harness's own task files: split, rows.
_OWN_TASKS = {
  "hellaswag/hellaswag.yaml": (
    "validation",
    {
      "activity_label": "Cooking",
      "ctx_a": "A man cuts bread.",
      "ctx_b": "then he",
      "endings": ["eats it.", "flies.", "sings a song.", "b"],
      "label": "3",
    },
  ),
  "winogrande/default.yaml": (
    "validation",
    {
      "sentence": "The cup does not fit in the box because _ is big.",
      "option1": "the cup",
      "option2": "the box",
      "answer": "1",
    },
  ),
  "truthfulqa/truthfulqa_mc1.yaml": ("validation", _MC2),
  "truthfulqa/truthfulqa_mc2.yaml": ("validation", _MC2),
  "mmlu/default/_default_template_yaml": (
    "test",
    {"question": "1+1?", "choices": ["2", "1", "3", "4"], "answer": 0},
  ),
}


class _Engine:
  """A token of value n has log-probability -n / 100; keeps what it was sent.

  It says that it is greedy where no token is above 110.
  """

  def __init__(self, reply="Rome. And"):
    self.scored, self.asked, self.reply = [], [], reply

  def score(self, sequences, num_context):
    self.scored += zip(sequences, num_context, strict=True)
    continuations = [ids[n:] for ids, n in zip(sequences, num_context)]
    return [(-sum(ids) / 100, max(ids) <= 110) for ids in continuations]

  def generate(self, prompts, until, max_tokens):
    self.asked.append((prompts, until, max_tokens))
    return [self.reply for _ in prompts]

  def model(self, max_tokens=64, **options):
    return harness.make_model(
      self.score, self.generate, _letters(), max_tokens=max_tokens, **options
    )


def _text(ids):
  return "".join(map(chr, ids))


def _requests(kind, *arguments):
  from lm_eval.api import instance

  return [instance.Instance(kind, {}, pair, 0) for pair in arguments]


def _write_task(folder, name, split, rows, task):
  """Writes a task file, in JSON, which is YAML, with its rows beside it."""
  file = folder / f"{name}.jsonl"
  file.write_text("\n".join(map(json.dumps, rows)))
  splits = {split: str(file), "dev": str(file)}
  own = {
    "task": name,
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": splits},
  }
  (folder / f"{name}.yaml").write_text(json.dumps(own | task))
  return str(folder)


def _write_local(folder, name, kind, rows, task):
  task = task | {
    "output_type": kind,
    "test_split": "test",
    "doc_to_text": "{{question}}",
    "metadata": {"version": 3.0},
  }
  return _write_task(folder, name, "test", rows, task)


@pytest.fixture
def offline(monkeypatch, tmp_path):
  """No network, and caches that are the test's own."""
  datasets = pytest.importorskip("datasets")
  monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
  return tmp_path


@pytest.mark.skipif(_HAS_PACKAGE, reason="the package is there")
def test_make_model_says_what_to_install():
  with pytest.raises(ImportError, match="lm_eval 0.4.13, found none; install"):
    _Engine().model()


def test_make_model_needs_room_for_a_prediction():
  with pytest.raises(ValueError, match="at least 2, got 1"):
    _Engine().model(max_tokens=1)


@needs_package
def test_loglikelihood_splits_and_cuts_as_the_harness_does():
  engine = _Engine()
  model = engine.model(max_tokens=4)
  scores = model.loglikelihood(
    _requests("loglikelihood", ("ab ", "c"), ("", "ab"), ("abcdef", "gh"))
  )
  assert engine.scored == [
    # The blank goes to the continuation: "ab" and " c".
    ([97, 98, 32, 99], 2),
    # An empty context is the end token.
    ([256, 97, 98], 1),
    # Of eight tokens the last five: four are fed, the last is predicted.
    ([100, 101, 102, 103, 104], 3),
  ]
  assert scores == [(-1.31, True), (-1.95, True), (-2.07, True)]


@needs_package
def test_loglikelihood_refuses_a_continuation_that_is_too_long():
  model = _Engine().model(max_tokens=4)
  with pytest.raises(ValueError, match="at most 4 tokens, got 5"):
    model.loglikelihood(_requests("loglikelihood", ("a", "bcdef")))


@needs_package
def test_loglikelihood_rolling_predicts_each_token_once():
  engine = _Engine()
  model = engine.model(max_tokens=4)
  total, empty = model.loglikelihood_rolling(
    _requests("loglikelihood_rolling", ("abcdef",), ("",))
  )
  assert engine.scored == [
    ([256, 97, 98, 99, 100], 1),
    # Two tokens are left and get as much context as fits.
    ([98, 99, 100, 101, 102], 3),
  ]
  assert total == pytest.approx(-(97 + 98 + 99 + 100 + 101 + 102) / 100)
  assert empty == 0.0


@needs_package
def test_generate_until_groups_cuts_and_keeps_the_order():
  engine = _Engine("Rome.\nAnd<end>")
  model = engine.model(max_tokens=12, max_new_tokens=5)
  texts = model.generate_until(
    _requests(
      "generate_until",
      ("a", {"until": ["\n"], "max_gen_toks": 8}),
      ("b", {"until": "d"}),
      ("abcdefgh", {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}),
      ("c", {}),
    )
  )
  assert texts == ["Rome.", "Rome.\nAn", "Rome.", "Rome.\nAnd"]
  assert engine.asked == [
    # Room for 12 - 8 tokens of the prompt, the last ones.
    ([[97], [101, 102, 103, 104]], ("\n", "<end>"), 8),
    ([[98]], ("d", "<end>"), 5),
    ([[99]], ("<end>",), 5),
  ]


@needs_package
@pytest.mark.parametrize(
  ("options", "match"),
  [
    ({"do_sample": True, "temperature": 0.7}, "greedy, got temperature 0.7"),
    ({"max_gen_toks": 64}, "fewer than 64 new tokens"),
  ],
)
def test_generate_until_refuses_what_it_cannot_do(options, match):
  with pytest.raises(ValueError, match=match):
    _Engine().model().generate_until(
      _requests("generate_until", ("a", options))
    )


@needs_package
def test_a_multiple_choice_task_by_hand(offline):
  rows = [
    # " b" is -(32 + 98) / 100 = -1.30, " aa" is -2.26: acc takes "b". By
    # letters they are -1.30 and -1.13: acc_norm takes "aa".
    {"question": "q", "choices": ["b", "aa"], "gold": 0},
    # " z" -1.54 and " y" -1.53: both take "y".
    {"question": "r", "choices": ["z", "y"], "gold": 1},
    {"question": "s", "choices": ["z", "y"], "gold": 0},
    {"question": "t", "choices": ["b", "aa"], "gold": 1},
  ]
  folder = _write_local(offline, "local", "multiple_choice", rows, _CHOICE)
  general = harness.evaluate(_Engine().model(), ["local"], task_dir=folder)
  assert general.table == {"local/acc": 2 / 4, "local/acc_norm": 2 / 4}
  # sqrt(p (1 - p) / (n - 1)) of two in four.
  assert general.stderrs["local/acc"] == pytest.approx(math.sqrt(0.25 / 3))
  assert general.counts == {"local": 4}
  assert general.settings == {
    "lm_eval": "0.4.13",
    "is_chat": "False",
    "local/version": "3.0",
    "local/num_fewshot": "0",
  }
  first = harness.evaluate(
    _Engine().model(), ["local"], task_dir=folder, max_items=1
  )
  assert first.table == {"local/acc": 1.0, "local/acc_norm": 0.0}


@needs_package
def test_a_perplexity_task_by_hand(offline):
  rows = [{"question": "ab cd"}, {"question": "e"}]
  folder = _write_local(
    offline, "rolling", "loglikelihood_rolling", rows, _ROLLING
  )
  general = harness.evaluate(_Engine().model(), ["rolling"], task_dir=folder)
  # exp of the negated sum over the number of words, which are three.
  nats = (97 + 98 + 32 + 99 + 100 + 101) / 100
  assert general.table["rolling/word_perplexity"] == pytest.approx(
    math.exp(nats / 3)
  )


@needs_package
def test_a_generation_task_by_hand(offline):
  rows = [
    {"question": "Capital of Italy?", "gold": "Rome"},
    {"question": "Capital of Norway?", "gold": "Oslo"},
  ]
  folder = _write_local(offline, "until", "generate_until", rows, _UNTIL)
  engine = _Engine()
  general = harness.evaluate(engine.model(), ["until"], task_dir=folder)
  assert general.table["until/exact_match"] == 0.5
  assert engine.asked[0][1:] == ((".", "<end>"), 8)


@needs_package
def test_the_harness_tasks_run_on_local_data(offline):
  import lm_eval

  tasks = pathlib.Path(lm_eval.__file__).parent / "tasks"
  names = []
  for number, (own, (split, row)) in enumerate(_OWN_TASKS.items()):
    name = f"local_{number}"
    task = {
      "include": str(tasks / own),
      "tag": None,
      "dataset_name": None,
      "training_split": None,
    }
    _write_task(offline, name, split, [row], task)
    names.append(name)
  engine = _Engine()
  table = harness.evaluate(
    engine.model(max_tokens=2000), names, task_dir=str(offline)
  ).table
  hellaswag, winogrande, mc1, mc2, mmlu = names
  # " b" has the smallest sum, but "sings a song." the smallest a letter.
  assert table[f"{hellaswag}/acc"] == 1.0
  assert table[f"{hellaswag}/acc_norm"] == 0.0
  # Equal continuations after two contexts: the first, which is right.
  assert table[f"{winogrande}/acc"] == 1.0
  prefixes = [_text(ids[:n]) for ids, n in engine.scored if n < 60]
  assert "The cup does not fit in the box because the cup" in prefixes
  # " Yes" -3.37, " No" -2.21, " Y" -1.21; the first two are true.
  assert table[f"{mc1}/acc"] == 0.0
  true, false = math.exp(-3.37) + math.exp(-2.21), math.exp(-1.21)
  assert table[f"{mc2}/acc"] == pytest.approx(true / (true + false))
  # " A" is the smallest letter.
  assert table[f"{mmlu}/acc"] == 1.0


@needs_package
def test_evaluate_names_unknown_tasks(offline):
  _write_local(offline, "local", "multiple_choice", [], _CHOICE)
  model = _Engine().model()
  for tasks in (["hellaswagg"], []):
    with pytest.raises(ValueError, match="must be names that the harness"):
      harness.evaluate(model, tasks, task_dir=str(offline))


@needs_package
def test_scores_equal_those_of_the_hugging_face_backend(root_dir):
  """Golden values of `make_harness.py`, whose model is the formula below."""
  golden = json.loads((root_dir / "tests/golden/harness.json").read_text())
  tokenizer = transformers.AutoTokenizer.from_pretrained(
    root_dir / "toolrl_jax/assets/tiny"
  )
  v = np.arange(len(tokenizer))

  def logprob(u, next_, i):
    logits = -((7 * v + 3 * u + u * v + 13 * i) % 101) / 20
    return float(logits[next_] - np.log(np.exp(logits).sum()))

  def score(sequences, num_context):
    return [
      (
        sum(logprob(ids[i], ids[i + 1], i) for i in range(n - 1, len(ids) - 1)),
        False,
      )
      for ids, n in zip(sequences, num_context)
    ]

  model = harness.make_model(
    score, _Engine().generate, tokenizer, max_tokens=golden["max_tokens"]
  )
  pairs = model.loglikelihood(
    _requests("loglikelihood", *(tuple(row[:2]) for row in golden["pairs"]))
  )
  expected = [row[2] for row in golden["pairs"]]
  assert [total for total, _ in pairs] == pytest.approx(expected, abs=1e-3)
  rolling = model.loglikelihood_rolling(
    _requests(
      "loglikelihood_rolling", *((row[0],) for row in golden["rolling"])
    )
  )
  expected = [row[1] for row in golden["rolling"]]
  assert rolling == pytest.approx(expected, abs=1e-3)


def test_flatten_keeps_filters_and_groups_and_leaves_words_out():
  own = {
    "alias": "t",
    "acc,none": 0.5,
    "exact_match,strict": 0.25,
    "exact_match_stderr,strict": "N/A",
  }
  group = {"acc,none": 0.75, "acc_stderr,none": 0.2}
  report = {"results": {"t": own}, "groups": {"g": group}, "n-shot": {"t": 5}}
  general = harness.flatten(report, is_chat=True)
  assert general.table == {
    "t/acc": 0.5,
    "t/exact_match[strict]": 0.25,
    "g/acc": 0.75,
  }
  assert general.stderrs == {"g/acc": 0.2}
  assert general.settings["is_chat"] == "True"
  assert general.settings["t/num_fewshot"] == "5"
