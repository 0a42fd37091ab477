"""Prompts that arrive one by one, beside those that run."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest

from toolrl_jax import types
from toolrl_jax.rollout import driver, online
from toolrl_jax.rollout.request import RolloutError

LIMIT = 18


@pytest.fixture(scope="module")
def prompts():
  generator = np.random.default_rng(3)
  return [
    generator.integers(0, 120, size).tolist()
    for size in (5, 16, 17, 32, 1, 9, 30, 20, 8, 12, 25, 3)
  ]


@pytest.fixture
def serving(rolling):
  """Makes servers of a fresh engine, and ends their threads."""
  with contextlib.ExitStack() as stack:

    def make(*, max_waiting=100, **settings):
      engine = rolling.engine(**{"slots": 2, "stop_ids": (), **settings})
      runner = driver.RolloutDriver(engine)
      stack.callback(runner.stop)
      return online.OnlineRollout(
        engine,
        runner,
        prompt_buckets=(16, 32),
        max_tokens=LIMIT,
        max_waiting=max_waiting,
      )

    yield make


async def _all(generation, count=1):
  """Returns the tokens of each sample, and how it ended."""
  ids, finish = [[] for _ in range(count)], [None] * count
  async for tokens in generation.tokens():
    ids[tokens.sample] += tokens.token_ids
    finish[tokens.sample] = tokens.finish
  return ids, finish


async def _alone(server, prompt, **options):
  count = options.get("num_samples", 1)
  return await _all(server.start(prompt, **options), count)


def _slow(engine):
  """Lets chunks wait until they are let go; returns what lets them."""
  decode_chunk, go = engine.programs.decode_chunk, threading.Semaphore(0)

  def waiting(*args):
    go.acquire(timeout=60)
    return decode_chunk(*args)

  engine.programs = engine.programs._replace(decode_chunk=waiting)
  return go


async def _until(condition):
  for _ in range(3000):
    if condition():
      return
    await asyncio.sleep(0.01)
  raise AssertionError("it did not happen")


def test_requests_that_join_running_ones_get_what_they_get_alone(
  serving, prompts
):
  async def scenario():
    server = serving(stop_ids=(3, 7, 11))
    alone = [
      await _alone(server, prompt, seed=seed, temperature=1.0 - seed % 2 / 2)
      for seed, prompt in enumerate(prompts)
    ]

    async def late(seed, prompt):
      await asyncio.sleep(0.01 * seed)
      return await _alone(
        server, prompt, seed=seed, temperature=1.0 - seed % 2 / 2
      )

    together = await asyncio.gather(
      *(late(seed, prompt) for seed, prompt in enumerate(prompts))
    )
    assert together == alone
    assert server.num_open == 0
    return alone

  alone = asyncio.run(scenario())
  for (ids,), (finish,) in alone:
    is_stop = ids[-1] in (3, 7, 11)
    assert finish == (types.FINISH_STOP if is_stop else types.FINISH_LENGTH)
    assert len(ids) == LIMIT or is_stop


def test_a_seed_names_the_samples_and_greedy_has_none(serving, prompts):
  async def scenario():
    server = serving()
    ask = lambda **options: _alone(server, prompts[3], **options)
    first, _ = await ask(seed=1, num_samples=2)
    assert (await ask(seed=1, num_samples=2))[0] == first
    assert len(set(map(tuple, first))) == 2
    # A sample has its name whatever the number of its siblings.
    assert (await ask(seed=1))[0] == first[:1]
    assert (await ask(seed=2, num_samples=2))[0] != first
    assert (await ask(seed=-(10**40)))[0] != first[:1]
    greedy, _ = await ask(seed=1, temperature=0.0)
    assert (await ask(seed=2, temperature=0.0))[0] == greedy
    short, (finish,) = await ask(seed=1, max_tokens=2)
    assert short == [first[0][:2]]
    assert finish == types.FINISH_LENGTH

  asyncio.run(scenario())


def test_samples_of_one_prompt_cost_one_prefill(serving, prompts):
  async def scenario():
    server = serving()
    await _alone(server, prompts[0], num_samples=2)
    assert server.engine.ledger.stats.num_prefills == 1

  asyncio.run(scenario())


def test_cancel_frees_the_row_at_the_next_chunk_and_leaves_others_alone(
  serving, prompts
):
  async def scenario():
    server = serving()
    alone = [await _alone(server, prompt, seed=7) for prompt in prompts[:3]]
    go = _slow(server.engine)
    running = [server.start(prompt, seed=7) for prompt in prompts[:2]]
    waiting = server.start(prompts[2], seed=7)
    rows = server.engine.ledger
    await _until(lambda: len(rows.live()) == 2)
    go.release()  # The first chunk of both.
    first = await anext(running[0].tokens())
    assert first.token_ids == alone[0][0][0][:4]
    running[0].cancel()
    running[0].cancel()
    chunks_before = rows.stats.num_generate_calls
    go.release(100)
    assert await _all(waiting) == alone[2]
    assert await _all(running[1]) == alone[1]
    # 18 tokens are 5 chunks of 4: the waiting one had a row two chunks after.
    assert rows.stats.num_generate_calls - chunks_before <= 2 + 5
    assert [tokens async for tokens in running[0].tokens()] == []
    await _until(lambda: server.num_open == 0)
    assert await _alone(server, prompts[0], seed=7) == alone[0]

  asyncio.run(scenario())


def test_who_was_cancelled_keeps_no_place(serving, prompts):
  async def scenario():
    server = serving(max_waiting=0)
    go = _slow(server.engine)
    slots = server.engine.slots
    gone = server.start(prompts[0], seed=1, num_samples=slots)
    with pytest.raises(online.BusyError):
      server.start(prompts[1], seed=1)
    # Before the engine has heard of it, and not twice.
    gone.cancel(0)
    gone.cancel()
    kept = server.start(prompts[1], seed=1, num_samples=slots)
    with pytest.raises(online.BusyError):
      server.start(prompts[2], seed=1)
    go.release(1000)
    await _all(kept, slots)
    await _until(lambda: server.num_open == 0)
    # One that has ended and is cancelled then gives no place away.
    kept.cancel()
    with pytest.raises(online.BusyError):
      server.start(prompts[0], seed=1, num_samples=1).cancel()
      for _ in range(slots + 1):
        server.start(prompts[0], seed=1)
    go.release(1000)

  asyncio.run(scenario())


def test_cancelled_row_ends_on_the_device_too(serving, prompts):
  async def scenario():
    server = serving()
    go = _slow(server.engine)
    gone, kept = (server.start(prompt, seed=1) for prompt in prompts[:2])
    await _until(lambda: len(server.engine.ledger.live()) == 2)
    go.release()
    await anext(gone.tokens())
    gone.cancel()
    go.release(100)
    await _all(kept)
    # Counts come after the tokens: one request more, and they are there.
    await _alone(server, prompts[0], max_tokens=1)
    return server.engine.ledger.stats.num_tokens

  # One chunk of four before, at most one that had begun.
  assert asyncio.run(scenario()) <= LIMIT + 2 * 4 + 1


def test_cancel_of_some_samples_and_of_waiting_ones(serving, prompts):
  async def scenario():
    server = serving()
    alone, _ = await _alone(server, prompts[0], seed=7, num_samples=2)
    go = _slow(server.engine)
    running = server.start(prompts[0], seed=7, num_samples=2)
    # More groups than rows: the last ones have not left our own queue.
    waiting = [server.start(prompt, seed=7) for prompt in prompts[1:6]]
    running.cancel(1)
    for generation in waiting:
      generation.cancel()
    go.release(1000)
    ids, _ = await _all(running, 2)
    assert ids == [alone[0], []]
    await _until(lambda: server.num_open == 0)
    assert server.engine.ledger.num_waiting == 0
    assert server.engine.ledger.is_idle
    assert (await _alone(server, prompts[0], seed=7, num_samples=2))[0] == alone

  asyncio.run(scenario())


def test_more_than_rows_and_places_is_busy_until_one_ends(serving, prompts):
  async def scenario():
    server = serving(max_waiting=1)
    go = _slow(server.engine)
    running = server.start(prompts[0], num_samples=2)
    waiting = server.start(prompts[1])
    with pytest.raises(online.BusyError, match="3 samples run or wait, and 2"):
      server.start(prompts[2])
    assert server.num_open == 3
    waiting.cancel()
    await _until(lambda: server.num_open == 2)
    # A prompt that is still being made has its place already.
    is_full = pytest.raises(online.BusyError, match="3 samples")
    with server.place_held(1), is_full:
      server.start(prompts[2])
    go.release(1000)
    await _all(running, 2)
    await _until(lambda: server.num_open == 0)
    await _alone(server, prompts[2])

  asyncio.run(scenario())


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    ({"prompt_ids": []}, "one or more token ids"),
    ({"prompt_ids": [120]}, "below 120"),
    ({"prompt_ids": [-1]}, "at least 0"),
    ({"prompt_ids": [1] * 33}, "at most 32 tokens beside 18"),
    ({"max_tokens": 0}, r"in \[1, 18\], got 0"),
    ({"max_tokens": 19}, r"in \[1, 18\], got 19"),
    ({"num_samples": 3}, r"samples must be in \[1, 2\], got 3"),
  ],
)
def test_start_refuses_what_cannot_be_served(serving, wrong, message):
  async def scenario():
    with pytest.raises(online.RequestError, match=message):
      serving().start(**{"prompt_ids": [1], **wrong})

  asyncio.run(scenario())


def test_drain_waits_for_what_runs_and_refuses_the_rest(serving, prompts):
  async def scenario():
    server = serving()
    go = _slow(server.engine)
    running = asyncio.create_task(_all(server.start(prompts[0])))
    assert not await server.drain(0.05)
    with pytest.raises(online.DrainingError):
      server.start(prompts[1])
    go.release(1000)
    assert await server.drain(60)
    assert len((await running)[0][0]) > 0

  asyncio.run(scenario())


def test_a_failure_is_that_of_its_own_request(serving, prompts):
  async def scenario():
    server = serving()
    expected = await _alone(server, prompts[2])
    programs = server.engine.programs
    calls = iter(range(100))

    def failing(*args):
      if next(calls) == 0:
        raise ValueError("injected\nin prefill")
      return programs.prefill(*args)

    server.engine.programs = programs._replace(prefill=failing)
    generations = [server.start(prompts[n]) for n in (0, 1, 2)]
    with pytest.raises(RolloutError, match="failed: injected in prefill$"):
      await _all(generations[0])
    await _all(generations[1])
    assert await _all(generations[2]) == expected
    assert server.driver.failure is None

  asyncio.run(scenario())


def test_stop_fails_what_runs_and_closes_the_server(serving, prompts):
  async def scenario():
    server = serving()
    go = _slow(server.engine)
    generations = [server.start(prompt) for prompt in prompts[:6]]
    await _until(lambda: len(server.engine.ledger.live()) == 2)
    threading.Timer(0.2, go.release, [1000]).start()
    await asyncio.to_thread(server.driver.stop)
    for generation in generations:
      with pytest.raises(RolloutError, match="driver was stopped"):
        await _all(generation)
    with pytest.raises(RolloutError, match="driver is closed"):
      server.start(prompts[0])
    assert server.num_open == 0

  asyncio.run(scenario())


def test_next_turn_runs_its_new_tokens_only(serving, prompts):
  async def scenario():
    server = serving(prefix_store_tokens=200)
    ((ids,), _) = await _alone(server, prompts[0], max_tokens=6, seed=1)
    # The store is written on the driver's thread after the last token.
    await _until(lambda: server.engine.store.num_tokens == 11)
    following = [*prompts[0], *ids, 5, 6, 7, 8, 9, 10]
    await _alone(server, following, max_tokens=2)
    assert server.engine.ledger.stats.num_reused_tokens == 11

  asyncio.run(scenario())


def test_run_gives_on_a_driver_that_served_what_serving_gave(serving, prompts):
  async def scenario():
    server = serving()
    ((ids,), _) = await _alone(server, prompts[0], seed=4)
    (request,) = server._group(prompts[0], 1, LIMIT, 1.0, 4).requests
    server.driver.run([request.group])
    assert request.columns()[0].tolist() == ids

  asyncio.run(scenario())
