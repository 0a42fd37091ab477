"""What every benchmark is: items, their conversations, and their score.

The one seam between the benchmarks and the program that runs them. A
benchmark knows its data and its rules; it knows neither the model, nor how
conversations are answered, nor where records are kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from toolrl_jax.evaluation import conversation


class Item(NamedTuple):
  """One task of a benchmark.

  Attributes:
    id: Unique in its benchmark and stable over runs.
    category: The category that it counts for.
    row: What the benchmark itself needs of it, the gold included.
  """

  id: str
  category: str
  row: Mapping[str, Any]


class Scores(NamedTuple):
  """What the outcomes of a benchmark are worth.

  Attributes:
    verdicts: Item id to its score in [0, 1] under the headline rule; every
      item that was to be scored is in it.
    table: Metric to value, fractions in [0, 1]: each category, the averages
      that the benchmark defines, and second readings (a fixed rule beside the
      upstream one).
    counts: Category to number of items.
    notes: What a reader has to know, a sentence each: categories that were not
      run, items that no answer passes.
  """

  verdicts: Mapping[str, float]
  table: Mapping[str, float]
  counts: Mapping[str, int]
  notes: tuple[str, ...] = ()


@runtime_checkable
class Benchmark(Protocol):
  """A set of tasks with its own rules.

  Attributes:
    name: Name in commands and files.
    headline: The metric of `Scores.table` to quote.
  """

  name: str
  headline: str

  def items(self) -> Sequence[Item]:
    """Returns all items that will be run, in a fixed order."""
    ...

  def converse(self, item: Item) -> conversation.Conversation:
    """Starts the conversation of an item; its outcome is a JSON object."""
    ...

  def score(self, outcomes: Mapping[str, Mapping[str, Any]]) -> Scores:
    """Scores outcomes by item id; an item without one counts as failed.

    It never raises for what an outcome says: model text is data.
    """
    ...

  def provenance(self) -> Mapping[str, str]:
    """Returns what a score depends on beside the model.

    Hashes of the data files, versions of packages, names of rules.
    """
    ...
