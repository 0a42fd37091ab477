"""Makes `harness.json`: what lm_eval's Hugging Face backend says of a model.

The model is one formula of the token before and the number of tokens fed, so
that a test can have the same model without torch, and a context that is cut
otherwise gives other values.

    python tests/golden/make_harness.py

in an environment with torch, transformers and lm_eval 0.4.13.
"""

import json
import pathlib

import torch
import transformers
from lm_eval.api import instance
from lm_eval.models import huggingface

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_MAX_TOKENS = 24
_PAIRS = (
  ("The weather in Oslo is", " cold"),
  ("The weather in Oslo is ", "cold"),
  ("", "Oslo"),
  ("", " a longer text without any context"),
  ("Łódź — ünï", "cödé"),
  ("one two three four five six seven eight nine ten " * 3, " eleven twelve"),
  ("Question: yes or no?\nAnswer:", " yes"),
  ("<|im_start|>user\nhello", "<|im_end|>"),
)
_TEXTS = (
  "a",
  "The weather in Oslo is cold.",
  "one two three four five six seven eight nine ten " * 4,
  "",
)


class _Formula(torch.nn.Module):
  """Token v after token u at place i has the logit -(7v + 3u + uv + 13i)/20.

  The bracket is taken modulo 101.
  """

  def __init__(self, size: int):
    super().__init__()
    self.size = torch.nn.Parameter(torch.tensor(float(size)))
    self.config = transformers.Qwen2Config(vocab_size=size)
    self.device = torch.device("cpu")

  def tie_weights(self):
    """Nothing is tied."""

  def forward(self, input_ids, **_):
    """Returns the logits at all places."""
    v = torch.arange(int(self.size))
    u = input_ids[..., None]
    i = torch.arange(input_ids.shape[1])[:, None]
    return transformers.modeling_outputs.CausalLMOutput(
      logits=-((7 * v + 3 * u + u * v + 13 * i) % 101) / 20.0
    )


def _requests(kind, arguments):
  return [
    instance.Instance(kind, {}, pair, number)
    for number, pair in enumerate(arguments)
  ]


def main():
  """Writes the file."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(
    _ROOT / "toolrl_jax/assets/tiny"
  )
  model = huggingface.HFLM(
    pretrained=_Formula(len(tokenizer)),
    tokenizer=tokenizer,
    backend="causal",
    max_length=_MAX_TOKENS,
    batch_size=3,
  )
  pairs = model.loglikelihood(_requests("loglikelihood", _PAIRS))
  rolling = model.loglikelihood_rolling(
    _requests("loglikelihood_rolling", [(text,) for text in _TEXTS])
  )
  golden = {
    "max_tokens": _MAX_TOKENS,
    "pairs": [
      [*pair, float(total), bool(greedy)]
      for pair, (total, greedy) in zip(_PAIRS, pairs, strict=True)
    ],
    "rolling": [
      [text, float(total)] for text, total in zip(_TEXTS, rolling, strict=True)
    ],
  }
  file = _ROOT / "tests/golden/harness.json"
  file.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main()
