import threading
import time

import numpy as np
import pytest

from toolrl_jax.rollout import collect
from toolrl_jax.rollout.request import RolloutError

SERVERS = ("inline", "jetstream")


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("layout", ["shared", "repeated"])
def test_on_group_gets_each_prompts_rows_once(
  rolling, batch, plain, assert_same, name, layout
):
  got = {}
  threads = set()

  def on_group(index, rows):
    assert index not in got
    got[index] = rows
    threads.add(threading.current_thread())

  rollouts, _ = rolling.rollout(
    batch, name, settings={"layout": layout}, on_group=on_group
  )
  if layout == "shared":
    assert_same(rollouts, plain[0])
  assert sorted(got) == [0, 1, 2, 3, 4]
  assert len(threads) == 1 and threading.current_thread() not in threads
  for index, rows in got.items():
    size = rollouts.completion_mask[index].sum(-1).max()
    assert rows.completion_ids.shape == (1, 4, size)
    for field, whole in zip(rows[:4], rollouts[:4]):
      np.testing.assert_array_equal(field[0], whole[index, :, :size])
    np.testing.assert_array_equal(rows.finish[0], rollouts.finish[index])


@pytest.mark.parametrize("name", SERVERS)
def test_groups_arrive_while_others_decode_and_never_hold_them_up(
  rolling, batch, plain, assert_same, name
):
  engine = rolling.engine()
  decode_chunk = engine.programs.decode_chunk
  has_begun, goes_on = threading.Event(), threading.Event()
  waited = []

  def decode(*args):
    if has_begun.is_set():
      goes_on.set()
    time.sleep(0.02)
    return decode_chunk(*args)

  def on_group(index, rows):
    # Ends only when another chunk is decoded after its beginning: it would
    # wait in vain if it came at the end, or if decoding waited for it.
    if not waited:
      has_begun.set()
      waited.append(goes_on.wait(30))

  engine.programs = engine.programs._replace(decode_chunk=decode)
  with collect.start(engine, name) as server:
    rollouts = rolling.serve(server, batch, on_group=on_group)
  assert waited == [True]
  assert_same(rollouts, plain[0])


def test_on_group_leaves_masked_groups_out(rolling, batch):
  got = []
  is_real = np.array([True, False, False, True, False])
  rolling.rollout(
    batch._replace(is_real=is_real),
    on_group=lambda index, rows: got.append(index),
  )
  assert sorted(got) == [0, 3]


@pytest.mark.parametrize("name", SERVERS)
def test_on_group_that_raises_fails_the_rollout_and_the_next_is_right(
  rolling, batch, plain, assert_same, name
):
  def on_group(index, rows):
    if index == 2:
      raise KeyError("no such tool")

  with collect.start(rolling.engine(), name) as server:
    with pytest.raises(RolloutError, match="on_group failed.*no such tool"):
      rolling.serve(server, batch, on_group=on_group)
    assert_same(rolling.serve(server, batch), plain[0])


@pytest.mark.parametrize("name", SERVERS)
def test_on_group_leaves_failed_groups_out(rolling, batch, name):
  engine = rolling.engine()
  decode_chunk = engine.programs.decode_chunk
  calls, got = [], []

  def fail(*args):
    calls.append(0)
    if len(calls) == 2:
      raise ValueError("injected")
    return decode_chunk(*args)

  engine.programs = engine.programs._replace(decode_chunk=fail)
  with (
    collect.start(engine, name) as server,
    pytest.raises(RolloutError, match="injected"),
  ):
    rolling.serve(server, batch, on_group=lambda index, rows: got.append(index))
  # The first two had rows when the state was lost; the others went on.
  assert not {0, 1} & set(got)
