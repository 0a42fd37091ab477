import numpy as np

from toolrl_jax.data import padding
from toolrl_jax.training import sft


def test_assemble_makes_the_target_the_only_completion():
  prompts = padding.batch([[7, 8, 9], [5]], buckets=[4], num_groups=3)
  batch = sft.assemble(prompts, [[4, 6], [3]], buckets=[2, 4])
  assert batch.prompt_ids.tolist() == [[7, 8, 9, 0], [5, 0, 0, 0], [0] * 4]
  assert batch.completion_ids.tolist() == [[[4, 6]], [[3, 0]], [[0, 0]]]
  assert batch.completion_mask.tolist() == [
    [[True, True]],
    [[True, False]],
    [[False, False]],
  ]
  # The third group only fills the batch and leaves the divisor.
  assert batch.weight.tolist() == [[1.0], [1.0], [0.0]]
  assert all(np.shape(x)[0] == 3 for x in batch)
