import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.rollout import collect, prompts, request

SERVERS = ("inline", "jetstream")


def _group(ids, size=8):
  padded = np.zeros(size, np.int32)
  padded[: len(ids)] = ids
  return request.Group(
    padded, len(ids), step=0, sample_indices=[0], limit=4, temperature=1.0
  )


def test_extension_size_is_a_power_of_two_from_16():
  sizes = [prompts.extension_size(count) for count in (1, 16, 17, 64, 65)]
  assert sizes == [16, 16, 32, 64, 128]


def test_run_together_takes_groups_in_order_and_leaves_stored_ones_out():
  groups = [_group([1 + index]) for index in range(6)]
  groups[1].stored = object()
  prompts.run_together(groups, 2)
  members = lambda index: [groups.index(mate) for mate in groups[index].mates]
  assert [members(index) for index in (0, 2, 3, 4, 5)] == [
    [0, 2], [0, 2], [3, 4], [3, 4], [5],
  ]  # fmt: skip
  assert [group.prefix_row for group in groups] == [0, 0, 1, 0, 1, 0]
  assert groups[1].mates == (groups[1],)


def test_prompt_rows_fills_up_with_rows_of_one_token():
  ids, lengths = prompts.prompt_rows([_group([5, 6], 4), _group([7], 4)], 3)
  assert ids.tolist() == [[5, 6, 0, 0], [7, 0, 0, 0], [0, 0, 0, 0]]
  assert lengths.tolist() == [2, 1, 1]


@pytest.fixture(scope="module")
def paired(rolling, batch):
  """What the inline server samples with two prompts a prefill call."""
  return rolling.rollout(batch, settings={"prefill_rows": 2})


def test_batched_prefill_equals_single_ones_up_to_rounding(paired, plain):
  rollouts, stats = paired
  assert (stats.num_prefills, stats.num_prefill_calls) == (5, 3)
  assert (plain[1].num_prefills, plain[1].num_prefill_calls) == (5, 5)
  base = plain[0]
  is_equal = (rollouts.completion_ids == base.completion_ids).all(-1)
  assert (~is_equal).sum() <= 1
  np.testing.assert_allclose(
    rollouts.logprobs[is_equal], base.logprobs[is_equal], atol=1e-5
  )


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("decode_chunk", [1, 4, 16])
def test_batched_prefill_bits_do_not_depend_on_chunk_or_server(
  rolling, batch, paired, assert_same, name, decode_chunk
):
  settings = {"prefill_rows": 2, "decode_chunk": decode_chunk}
  rollouts, stats = rolling.rollout(batch, name, settings=settings)
  assert_same(rollouts, paired[0])
  assert (stats.num_prefills, stats.num_prefill_calls) == (5, 3)


@pytest.mark.parametrize("name", SERVERS)
def test_batched_prefill_leaves_masked_groups_out_of_its_calls(
  rolling, batch, name
):
  is_real = np.array([True, False, False, True, False])
  masked = batch._replace(is_real=is_real)
  settings = {"prefill_rows": 2}
  rollouts, stats = rolling.rollout(masked, name, settings=settings)
  assert (stats.num_prefills, stats.num_prefill_calls) == (2, 1)
  together = types.PromptBatch(*(field[is_real] for field in batch))
  alone, _ = rolling.rollout(together, settings=settings)
  np.testing.assert_array_equal(rollouts.logprobs[is_real], alone.logprobs)


@pytest.mark.parametrize("name", SERVERS)
def test_batched_prefill_of_repeated_layout_runs_every_request(
  rolling, batch, plain, name
):
  settings = {"layout": "repeated", "prefill_rows": 2}
  rollouts, stats = rolling.rollout(batch, name, settings=settings)
  assert (stats.num_prefills, stats.num_prefill_calls) == (20, 10)
  is_equal = (rollouts.completion_ids == plain[0].completion_ids).all(-1)
  assert (~is_equal).sum() <= 1


def test_failed_batched_prefill_fails_its_request_and_the_next_is_right(
  rolling, batch, paired, assert_same
):
  made = rolling.engine(prefill_rows=2)
  programs = made.programs

  def fail(*args):
    made.programs = programs
    raise ValueError("injected")

  made.programs = programs._replace(prefill=fail)
  with collect.start(made, "jetstream") as server:
    with pytest.raises(request.RolloutError, match="injected"):
      rolling.serve(server, batch)
    assert_same(rolling.serve(server, batch), paired[0])
