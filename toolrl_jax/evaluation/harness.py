"""General abilities: our engine as a model of lm-evaluation-harness.

From two functions of the engine, one that scores token ids and one that
continues them, to a model that the package lm_eval can evaluate, and from its
report to a flat table. The tasks, their prompts and their metrics are the
harness's own; HellaSwag, MMLU, TruthfulQA and Winogrande only need scores of
given continuations. Splitting of context and continuation, the prefix of an
empty context, truncation and rolling windows are those of the harness's
Hugging Face backend, so that both give the same numbers for the same model.

The package is optional and imported where it is used. It does not need torch.
"""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import transformers

VERSION = "0.4.13"

# Sequences of token ids and how many of each are context, to the sum of the
# log-probabilities (nats) of the others and whether each of them is the most
# probable one. A sequence has at most `max_tokens` + 1 ids, the last of which
# is predicted and need not be fed.
Score = Callable[
  [Sequence[Sequence[int]], Sequence[int]], Sequence[tuple[float, bool]]
]
# Prompts as token ids, texts to stop at, most new tokens, to greedy
# continuations. Whether the stop text is in the continuation does not matter.
Generate = Callable[
  [Sequence[Sequence[int]], Sequence[str], int], Sequence[str]
]


class General(NamedTuple):
  """What the harness reports.

  Attributes:
    table: "task/metric" or "group/metric" to its value, in the metric's unit;
      accuracies are fractions in [0, 1].
    stderrs: The same keys to the standard error, where there is one.
    counts: Task to number of documents.
    settings: Versions and numbers of shots of the tasks, package version, and
      whether the chat template was on; scores compare under equal settings.
  """

  table: Mapping[str, float]
  stderrs: Mapping[str, float]
  counts: Mapping[str, int]
  settings: Mapping[str, str]


def make_model(
  score: Score,
  generate: Generate,
  tokenizer: transformers.PreTrainedTokenizerBase,
  *,
  max_tokens: int,
  max_new_tokens: int = 256,
) -> Any:
  """Makes a model that lm_eval can evaluate.

  Args:
    score: Scores continuations; see the type.
    generate: Continues prompts greedily; see the type.
    tokenizer: The checkpoint's.
    max_tokens: Longest sequence that the engine is fed, at least 2. Longer
      contexts lose their beginning.
    max_new_tokens: Longest continuation where a task sets none.

  Returns:
    An `lm_eval.api.model.LM`.

  Raises:
    ImportError: The package is missing or of another version.
    ValueError: `max_tokens` is too small to predict anything.
  """
  if max_tokens < 2:
    raise ValueError(
      f"max_tokens must be at least 2, got {max_tokens}; give the engine's"
      " longest sequence."
    )
  check_package()
  from lm_eval.api import model as lm_model

  made = type("EngineModel", (_EngineMethods, lm_model.TemplateLM), {})
  return made(score, generate, tokenizer, max_tokens, max_new_tokens)


def evaluate(
  model: Any,
  tasks: Sequence[str],
  *,
  task_dir: str = "",
  num_fewshot: int | None = None,
  max_items: int | None = None,
  is_chat: bool = False,
  seed: int = 0,
) -> General:
  """Evaluates a model on tasks of the harness.

  Args:
    model: From `make_model`.
    tasks: Names of tasks or groups, such as "hellaswag" or "mmlu".
    task_dir: Folder of task files. Such a file may include one of the
      harness's by its path and name local files as the data set; only the
      tasks of this folder are known then. Empty takes the harness's own,
      which fetch their data sets.
    num_fewshot: Shots; None takes each task's own number.
    max_items: Most documents of a task; None takes all.
    is_chat: Whether prompts go through the chat template.
    seed: Of the choice of shots.

  Returns:
    The report.

  Raises:
    ImportError: The package is missing or of another version.
    ValueError: No such task.
  """
  check_package()
  from lm_eval import evaluator
  from lm_eval import tasks as lm_tasks

  manager = lm_tasks.TaskManager(
    include_path=task_dir or None, include_defaults=not task_dir
  )
  missing = sorted(set(tasks) - set(manager.all_tasks))
  if missing or not tasks:
    raise ValueError(
      f"tasks must be names that the harness knows, got {missing or 'none'};"
      " see lm_eval ls tasks, or give a folder of task files."
    )
  report = evaluator.simple_evaluate(
    model,
    tasks=list(tasks),
    task_manager=manager,
    num_fewshot=num_fewshot,
    limit=max_items,
    apply_chat_template=is_chat,
    random_seed=seed,
    numpy_random_seed=seed,
    torch_random_seed=seed,
    fewshot_random_seed=seed,
    log_samples=False,
  )
  return flatten(report, is_chat=is_chat)


def flatten(report: Mapping[str, Any], *, is_chat: bool = False) -> General:
  """Turns a report of the harness into flat tables.

  Args:
    report: What `lm_eval.simple_evaluate` returns.
    is_chat: Whether the chat template was on.

  Returns:
    The tables; a filter other than "none" is part of the metric's name.
  """
  table: dict[str, float] = {}
  stderrs: dict[str, float] = {}
  for task, row in {**report["results"], **report.get("groups", {})}.items():
    for key, value in row.items():
      metric, comma, filter_ = key.partition(",")
      if not comma or isinstance(value, bool | str):
        continue
      suffix = "" if filter_ == "none" else f"[{filter_}]"
      if metric.endswith("_stderr"):
        name = f"{task}/{metric.removesuffix('_stderr')}{suffix}"
        stderrs[name] = float(value)
      else:
        table[f"{task}/{metric}{suffix}"] = float(value)
  settings = {"lm_eval": VERSION, "is_chat": str(is_chat)}
  for task, version in report.get("versions", {}).items():
    settings[f"{task}/version"] = str(version)
  for task, shots in report.get("n-shot", {}).items():
    settings[f"{task}/num_fewshot"] = str(shots)
  counts = {
    task: int(row["effective"])
    for task, row in report.get("n-samples", {}).items()
  }
  return General(table, stderrs, counts, settings)


def check_package() -> None:
  """Looks for the package.

  Raises:
    ImportError: It is missing or of another version.
  """
  try:
    version = importlib.metadata.version("lm_eval")
  except importlib.metadata.PackageNotFoundError:
    version = "none"
  if version != VERSION:
    raise ImportError(
      f"general abilities need lm_eval {VERSION}, found {version}; install"
      f" lm_eval=={VERSION}."
    )


class _EngineMethods:
  """What a model of the harness has to do; mixed into its `TemplateLM`.

  A class of its own, since the harness's is not there before the import.
  """

  cache_hook: Any

  def __init__(
    self,
    score: Score,
    generate: Generate,
    tokenizer: transformers.PreTrainedTokenizerBase,
    max_tokens: int,
    max_new_tokens: int,
  ):
    super().__init__()
    self._score, self._generate = score, generate
    self.tokenizer = tokenizer
    self.max_length, self._max_new_tokens = max_tokens, max_new_tokens

  @property
  def eot_token_id(self) -> int:
    """The end token."""
    return self.tokenizer.eos_token_id

  @property
  def prefix_token_id(self) -> int:
    """What an empty context is: the begin token, or the end token."""
    bos = self.tokenizer.bos_token_id
    return self.eot_token_id if bos is None else bos

  @property
  def tokenizer_name(self) -> str:
    """Name in the harness's caches."""
    return self.tokenizer.name_or_path.replace("/", "__")

  def tok_encode(
    self, string: str, add_special_tokens: bool | None = None, **_: Any
  ) -> list[int]:
    """Returns token ids; a text that begins with the prefix gets no other."""
    if add_special_tokens is None:
      prefix = str(self.tokenizer.decode([self.prefix_token_id]))
      add_special_tokens = not string.startswith(prefix)
    return list(
      self.tokenizer.encode(string, add_special_tokens=add_special_tokens)
    )

  def apply_chat_template(
    self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
  ) -> str:
    """Renders messages with the tokenizer's template."""
    return str(
      self.tokenizer.apply_chat_template(
        chat_history,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=not add_generation_prompt,
      )
    )

  def _loglikelihood_tokens(
    self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
  ) -> list[tuple[float, bool]]:
    """Scores continuations that are already token ids."""
    sequences, contexts = [], []
    for _key, context, continuation in requests:
      if len(continuation) > self.max_length:
        raise ValueError(
          f"a continuation must have at most {self.max_length} tokens, got"
          f" {len(continuation)}; give the engine longer sequences."
        )
      ids = [*context, *continuation][-(self.max_length + 1) :]
      sequences.append(ids)
      contexts.append(len(ids) - len(continuation))
    scored = self._score(sequences, contexts) if sequences else []
    marks = [(float(total), bool(greedy)) for total, greedy in scored]
    for (key, _context, _continuation), mark in zip(
      requests, marks, strict=True
    ):
      if key is not None:
        self.cache_hook.add_partial("loglikelihood", key, mark)
    return marks

  def loglikelihood_rolling(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[float]:
    """Scores whole texts, in windows where they are long."""
    from lm_eval import utils

    windows, owners = [], []
    for owner, request in enumerate(requests):
      pairs = utils.get_rolling_token_windows(
        token_list=self.tok_encode(request.args[0]),
        prefix_token=self.prefix_token_id,
        max_seq_len=self.max_length,
        context_len=1,
      )
      for context, continuation in map(utils.make_disjoint_window, pairs):
        windows.append((None, context, continuation))
        owners.append(owner)
    totals = [0.0] * len(requests)
    for owner, (total, _) in zip(owners, self._loglikelihood_tokens(windows)):
      totals[owner] += total
    for request, total in zip(requests, totals):
      self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
    return totals

  def generate_until(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[str]:
    """Continues prompts greedily; those with equal limits run together."""
    end = str(self.tokenizer.decode([self.eot_token_id]))
    groups: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for index, request in enumerate(requests):
      limits = _limits(request.args[1], self._max_new_tokens)
      groups.setdefault(limits, []).append(index)
    texts = [""] * len(requests)
    for (num_new, until), members in groups.items():
      room = self.max_length - num_new
      if room < 1:
        raise ValueError(
          f"a task may ask for fewer than {self.max_length} new tokens, got"
          f" {num_new}; give the engine longer sequences."
        )
      prompts = [
        self.tok_encode(requests[index].args[0])[-room:] for index in members
      ]
      stops = (*until, end)
      for index, text in zip(
        members, self._generate(prompts, stops, num_new), strict=True
      ):
        texts[index] = _cut(text, stops)
    for request, text in zip(requests, texts):
      self.cache_hook.add_partial("generate_until", request.args, text)
    return texts


def _limits(
  options: Mapping[str, Any], default: int
) -> tuple[int, tuple[str, ...]]:
  """Reads most new tokens and stop texts from a task's options."""
  if options.get("do_sample") and options.get("temperature"):
    raise ValueError(
      "generation for the harness is greedy, got temperature"
      f" {options['temperature']}; set do_sample to false in the task."
    )
  until = options.get("until") or ()
  until = (until,) if isinstance(until, str) else tuple(until)
  names = ("max_gen_toks", "max_new_tokens", "max_tokens")
  given = [options[name] for name in names if options.get(name) is not None]
  return int(given[0] if given else default), until


def _cut(text: str, stops: Sequence[str]) -> str:
  """Cuts a text at the first place where any stop text begins."""
  for stop in stops:
    if stop:
      text = text.partition(stop)[0]
  return text
