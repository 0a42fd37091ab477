"""Buckets and padded batches of prompts."""

import numpy as np
import pytest

from toolrl_jax.data import padding


@pytest.mark.parametrize(
  ("longest", "expected"),
  [
    (2048, (128, 256, 512, 1024, 2048)),
    (1500, (128, 256, 512, 1024, 1500)),
    (128, (128,)),
    (50, (50,)),
  ],
)
def test_default_buckets_end_with_the_longest(longest, expected):
  assert padding.default_buckets(longest) == expected


def test_bucket_for_takes_the_smallest_that_fits():
  buckets = (512, 128, 256)
  assert [padding.bucket_for(n, buckets) for n in (1, 128, 129, 512)] == [
    128,
    128,
    256,
    512,
  ]
  with pytest.raises(ValueError, match="longest bucket, 512, has 513"):
    padding.bucket_for(513, buckets)


def test_batch_pads_right_and_masks_missing_groups():
  prompts = padding.batch([[5, 6, 7], [8]], buckets=(2, 4, 8), num_groups=3)
  np.testing.assert_array_equal(
    prompts.prompt_ids, [[5, 6, 7, 0], [8, 0, 0, 0], [0, 0, 0, 0]]
  )
  np.testing.assert_array_equal(prompts.prompt_length, [3, 1, 1])
  np.testing.assert_array_equal(prompts.is_real, [True, True, False])
  assert prompts.prompt_ids.dtype == prompts.prompt_length.dtype == np.int32


def test_batch_of_nothing_is_all_masked():
  prompts = padding.batch([], buckets=(4, 2), num_groups=2)
  assert prompts.prompt_ids.shape == (2, 2)
  assert not prompts.is_real.any()


@pytest.mark.parametrize("prompts", [[[1], [2]], [[]]])
def test_batch_refuses_too_many_or_empty_prompts(prompts):
  with pytest.raises(ValueError, match="up to 1 prompts"):
    padding.batch(prompts, buckets=(4,), num_groups=1)
