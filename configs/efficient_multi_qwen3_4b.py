r"""Efficient multi-turn GRPO on Qwen3-4B (arXiv:2606.00135, table 4).

    toolrl-train --config=configs/efficient_multi_qwen3_4b.py \
      --workdir=/data/run --config.model.path=/data/Qwen3-4B \
      --config.data.train_path=/data/multi_2p6k.jsonl \
      --config.data.eval_path=/data/multi_heldout.jsonl

Rows: the paper's 2.6k prompts are steps of LoopTool trajectories of 2 to 6
turns with one call each, filtered by a stronger model; they are not published,
so the path is yours, in the JSONL form of docs/data.md (trajectories are cut
into steps on loading). Paper's score (table 4, BFCL multi / single / average):
37.2 / 84.8 / 61.0 with the stronger prompt, 39.4 / 84.8 / 62.1 after training.

From the paper: 256 prompts a step, 16 rollouts, temperature 1, prompts of 4096
tokens, learning rate 1e-6, 4 epochs, clip 0.2 / 0.28, no KL, no entropy;
reward 1 for the gold calls, else 0, without a format term; the chat template
with thinking kept in the history.
Searched in the paper, fixed here: streak k = 1 of {1, 2}, 8 kept of 16.
From the LoopTool project, whose rows are used: responses of 1024 tokens, 8
updates a step, lists compared as sets.
Our choice (not stated): the re-entry rule, sequence mean, statistics over the
kept rollouts, over-long prompts dropped.

The paper compares 16 rollouts here with 8 in its baseline. At equal numbers:
--config.sampler.streak=0 --config.selection.keep=0
"""

from configs import common


def get_config():
  """Returns the recipe."""
  config = common.get_config()

  # Given on the command line.
  config.model.path = "Qwen3-4B"

  # data
  config.data.train_path = "multi_2p6k.jsonl"
  config.data.eval_path = "multi_heldout.jsonl"
  config.data.max_prompt_tokens = 4_096

  # prompt
  config.prompt.template = "native"
  config.prompt.completion = "native"
  config.prompt.thinking = "keep"

  # sampler
  config.sampler.prompts_per_step = 256
  config.sampler.num_epochs = 4
  config.sampler.streak = 1

  # rollout
  config.rollout.group_size = 16
  config.rollout.max_completion_tokens = 1_024
  config.rollout.temperature = 1.0
  config.rollout.slots = 256
  # The copy would not fit beside the rest on small chips.
  config.rollout.unstack_layers = False

  # reward
  config.reward.name = "looptool"
  config.reward.newlines = "one_or_two"

  # selection
  config.selection.keep = 8

  # loss
  config.loss.clip_high = 0.28
  config.loss.aggregation = "sequence_mean"
  config.loss.minibatches = 8
  # One group a chip at a time; see docs/plan.md.
  config.loss.micro_groups = 1
  config.loss.logprob_chunk_tokens = 1_024

  # optimizer
  config.optimizer.learning_rate = 1e-6
  return config
