r"""ToolRL's cold-start GRPO on Qwen2.5-1.5B-Instruct (arXiv:2504.13958).

    toolrl-train --config=configs/toolrl_qwen25_1p5b.py --workdir=/data/run \
      --config.model.path=/data/Qwen2.5-1.5B-Instruct \
      --config.data.train_path=/data/rlla_4k/train.parquet \
      --config.data.eval_path=/data/rlla_4k/test.parquet

As configs/toolrl_qwen25_3b.py, which says what is the paper's and what is our
choice; the paper uses the same settings for every size. Paper's score (table
1, BFCL V3 overall): raw 19.41, GRPO cold 46.20; single run.
"""

from configs import toolrl_qwen25_3b


def get_config():
  """Returns the recipe."""
  config = toolrl_qwen25_3b.get_config()
  config.model.path = "Qwen2.5-1.5B-Instruct"
  return config
