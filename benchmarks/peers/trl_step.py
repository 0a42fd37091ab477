"""One GRPO step of TRL at a time, told from outside when to run.

Started by `benchmarks/step_time.py` in an environment of its own, which knows
nothing of toolrl_jax:

    .peers/trl/bin/python benchmarks/peers/trl_step.py --core=1 ...

Reads one line from standard input for each step to run and answers with one
line of JSON on standard output: seconds of the generation, of the rest and of
the whole step. The end of the input ends the process. What TRL itself writes
goes to standard error.

The setting is a random Qwen2 in float32 on ids instead of text, with the
library's own trainer, `transformers`' generation with a key-value cache, and
no recomputation in the backward pass. A step is what passes between the
trainer's two callbacks for its begin and end. TRL pads to the longest prompt
of a batch, so a longer limit of the run changes nothing.
"""

import argparse
import json
import os
import sys
import tempfile
import time

import datasets
import numpy as np
import tokenizers
import torch
import transformers
import trl
from tokenizers import models, pre_tokenizers

_FLAGS = (
  "layers", "width", "ffn", "vocab", "heads", "kv_heads", "head_dim",
  "prompt_len", "max_prompt_len", "response_len", "group_size", "core",
)  # fmt: skip
_SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
_NUM_PROMPTS = 64
# Steps end with the input, not with a count.
_NO_LIMIT = 10**6


class Steps(transformers.TrainerCallback):
  """Waits for a line of input before a step, and answers after it."""

  def __init__(self, answers):
    self._answers = answers
    self.rollout_secs = 0.0

  def on_step_begin(self, args, state, control, **kwargs):
    """Waits for the word to go, or ends the process."""
    if not sys.stdin.readline():
      os._exit(0)
    self.rollout_secs = 0.0
    self._start, self._cpu_start = time.perf_counter(), time.process_time()

  def on_step_end(self, args, state, control, **kwargs):
    """Tells the seconds of the step."""
    step_secs = time.perf_counter() - self._start
    record = {
      "step_secs": step_secs,
      "rollout_secs": self.rollout_secs,
      "update_secs": step_secs - self.rollout_secs,
      "cpu_secs": time.process_time() - self._cpu_start,
    }
    print(json.dumps(record), file=self._answers, flush=True)


def parse_options():
  """Reads the command line."""
  parser = argparse.ArgumentParser()
  for name in _FLAGS:
    parser.add_argument(f"--{name}", type=int, required=True)
  options = parser.parse_args()
  if options.head_dim * options.heads != options.width:
    parser.error("transformers' Qwen2 has heads of width / heads")
  return options


def make_tokenizer(vocab_size):
  """Text is ids in decimal, with a blank between them."""
  vocabulary = {
    _SPECIAL[i] if i < len(_SPECIAL) else str(i): i for i in range(vocab_size)
  }
  words = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
  words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  return transformers.PreTrainedTokenizerFast(
    tokenizer_object=words,
    pad_token="<pad>",
    bos_token="<bos>",
    eos_token="<eos>",
    unk_token="<unk>",
    padding_side="left",
  )


def make_model(options):
  """Draws the policy."""
  torch.manual_seed(0)
  config = transformers.Qwen2Config(
    vocab_size=options.vocab,
    hidden_size=options.width,
    intermediate_size=options.ffn,
    num_hidden_layers=options.layers,
    num_attention_heads=options.heads,
    num_key_value_heads=options.kv_heads,
    max_position_embeddings=options.max_prompt_len + options.response_len,
    tie_word_embeddings=True,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
  )
  return transformers.Qwen2ForCausalLM(config).float()


def make_prompts(options):
  """Draws prompts of the exact length."""
  random = np.random.default_rng(0)
  shape = (_NUM_PROMPTS, options.prompt_len)
  ids = random.integers(len(_SPECIAL), options.vocab, shape)
  return datasets.Dataset.from_list(
    [{"prompt": " ".join(map(str, row))} for row in ids]
  )


def reward(completions, **_):
  """Gives each completion of a group a different reward."""
  return [float(index % 7) for index in range(len(completions))]


def make_trainer(options, steps, folder):
  """Builds the trainer, with one group a step and one update a group."""
  return trl.GRPOTrainer(
    model=make_model(options),
    reward_funcs=reward,
    train_dataset=make_prompts(options),
    processing_class=make_tokenizer(options.vocab),
    callbacks=[steps],
    args=trl.GRPOConfig(
      output_dir=folder,
      use_cpu=True,
      bf16=False,
      fp16=False,
      per_device_train_batch_size=options.group_size,
      gradient_accumulation_steps=1,
      num_generations=options.group_size,
      max_completion_length=options.response_len,
      # No end before the full length.
      generation_kwargs={"min_new_tokens": options.response_len},
      max_steps=_NO_LIMIT,
      learning_rate=1e-6,
      beta=0.0,
      temperature=1.0,
      top_p=1.0,
      top_k=0,
      gradient_checkpointing=False,
      report_to=[],
      save_strategy="no",
      disable_tqdm=True,
    ),
  )


def main():
  """Trains, a step for each line that comes in."""
  # TRL prints; the answers keep the standard output for themselves.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  options = parse_options()
  for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {options.core})
  torch.set_num_threads(1)
  steps = Steps(answers)
  with tempfile.TemporaryDirectory() as folder:
    trainer = make_trainer(options, steps, folder)
    generate = trainer._generate

    def timed_generate(*args, **kwargs):
      start = time.perf_counter()
      output = generate(*args, **kwargs)
      lengths = {len(ids) for ids in output[1]}
      if lengths != {options.response_len}:
        raise ValueError(
          f"TRL must give {options.response_len} tokens a completion for an "
          f"equal comparison, got lengths {sorted(lengths)}."
        )
      steps.rollout_secs += time.perf_counter() - start
      return output

    trainer._generate = timed_generate
    trainer.train()


if __name__ == "__main__":
  main()
