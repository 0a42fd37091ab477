"""The switches that a score depends on, and their hash.

One record of everything about how a model is asked that is not the model, the
items or the seed. Two scores may be compared when their protocols have the
same hash (arXiv:2606.00135 shows how far apart others lie). Knows nothing of
benchmarks.
"""

import hashlib
import json
import pathlib
from typing import NamedTuple

from toolrl_jax.data import templates
from toolrl_jax.parsing import tool_calls

# The paper names four groups of rules and not their text; the words are ours.
STRONGER_SYSTEM = """\
Work by these rules.

Finishing:
- When the request is fulfilled, stop calling tools and sum up the outcome in \
one or two sentences.
- When no tool can do what is asked, say so and call nothing.

Parameters:
- Before a call, compare each argument with the tool's description: required \
ones are present, types and units are right, allowed values are kept.
- Use only values that the conversation or a tool's result gives. If a required \
one is missing, ask for it; leave optional ones out where their default fits.

Splitting a task:
- If a request needs several calls, work out their order first. Make together \
the calls that do not depend on each other.
- If a call needs the result of another, make only the first one now and wait.

Errors:
- If a tool reports an error, read it, correct the call and try again; do not \
repeat the same call.
- After a correction go on with what is left of the request."""

SYSTEMS = ("default", "stronger")


class Protocol(NamedTuple):
  """How a model is asked.

  Attributes:
    template: How a history becomes a prompt; see `data/templates.py`.
    completion: Layout in which calls are read from an answer.
    thinking: Which earlier thinking the model sees.
    system: Extra system text; empty is none.
    temperature: Of sampling; 0 is greedy.
    top_p: Nucleus, 1 is off.
    top_k: Most probable tokens kept, 0 is off.
    max_new_tokens: Longest answer.
    max_prompt_tokens: Longest prompt; a longer one is not answered.
    tool_docs: Form of the tool documents: "raw" (the benchmark's own, bare, as
      bfcl-eval shows them to Qwen) or "json_schema" (as JSON schema inside
      {"type": "function", "function": ...}).
  """

  template: templates.Template
  completion: tool_calls.Style
  thinking: templates.Thinking
  system: str
  temperature: float
  top_p: float
  top_k: int
  max_new_tokens: int
  max_prompt_tokens: int
  tool_docs: str = "json_schema"

  @property
  def hash(self) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all switches."""
    text = json.dumps(self._asdict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def record(self) -> dict[str, object]:
    """Returns the switches with their hash, for a score file."""
    system = hashlib.sha256(self.system.encode()).hexdigest()[:16]
    return {"hash": self.hash, "system_hash": system, **self._asdict()}


def system_text(choice: str) -> str:
  """Returns the extra system text of a choice.

  Args:
    choice: "default" is none, "stronger" ours with the paper's four groups of
      rules, anything else the path of a text file.

  Returns:
    The text.

  Raises:
    ValueError: There is no such file, or it is not text.
  """
  if choice in SYSTEMS:
    return STRONGER_SYSTEM if choice == "stronger" else ""
  try:
    return pathlib.Path(choice).read_text(encoding="utf-8").strip()
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(
      f'system must be "default", "stronger" or a text file, got {choice!r}: '
      f"{' '.join(str(error).split())}"
    ) from error
