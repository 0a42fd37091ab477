import os
import queue
import signal
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

from toolrl_jax.rollout import collect, driver, inline, token_forms
from toolrl_jax.rollout.request import Group, RolloutError

SERVERS = ("inline", "jetstream")
PROGRAMS = ("prefill", "write_bank", "start_row", "decode_chunk")


def _fail_at(engine, name, call):
  """Makes one call of a device program raise, after it took its arguments."""
  program = getattr(engine.programs, name)
  count = iter(range(1000))

  def failing(*args):
    if next(count) == call:
      if name != "prefill":
        # A donated state is gone when the call that took it fails.
        states = [arg for arg in args if hasattr(arg, "is_done")]
        jax.tree.map(lambda leaf: leaf.delete(), states)
      raise ValueError(f"injected in {name}\nsecond line")
    return program(*args)

  engine.programs = engine.programs._replace(**{name: failing})


def _groups(batch, rows=(0, 1, 2)):
  return [
    Group(
      batch.prompt_ids[row], int(batch.prompt_length[row]), step=2,
      sample_indices=range(4), limit=18, temperature=1.0,
    )
    for row in rows
  ]  # fmt: skip


def _driver_threads():
  names = ("prefill-", "transfer-", "generate-", "detokenize-")
  return [t for t in threading.enumerate() if t.name.startswith(names)]


@pytest.mark.parametrize("call", [0, 3])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", SERVERS)
def test_rollout_fails_with_the_engines_error_and_the_next_is_right(
  rolling, batch, plain, assert_same, name, program, call
):
  engine = rolling.engine()
  _fail_at(engine, program, call)
  with collect.start(engine, name) as server:
    with pytest.raises(RolloutError) as caught:
      rolling.serve(server, batch)
    message = str(caught.value)
    assert message.startswith("the rollout of step 2 failed in ")
    assert message.endswith(f"requests: injected in {program} second line")
    assert isinstance(caught.value.__cause__, ValueError)
    for _ in range(2):
      assert_same(rolling.serve(server, batch), plain[0])


@pytest.mark.parametrize("name", SERVERS)
def test_rollout_with_deleted_parameters_fails_and_sync_repairs_it(
  rolling, batch, plain, assert_same, params, name
):
  gone = jax.tree.map(lambda x: x.copy(), params)
  with collect.start(rolling.engine(params=gone), name) as server:
    rolling.serve(server, batch)
    jax.tree.map(lambda x: x.delete(), gone)
    with pytest.raises(RolloutError, match="deleted"):
      rolling.serve(server, batch)
    server.sync(params, 1)
    assert_same(rolling.serve(server, batch), plain[0])


def test_insert_without_a_free_bank_fails_the_request_only(rolling, batch):
  # Eight rows in groups of four: five banks. A sixth group finds none.
  engine = rolling.engine()
  engine.reserve(prompt_size=32, completion_size=24, group_size=4)
  groups = _groups(batch, rows=(0, 1, 2, 3, 4, 0))
  engine.ledger.open(groups)
  state = engine.init_decode_state()
  for row, group in enumerate(groups):
    tokens = token_forms.tokens_of(group.requests[0])
    handle = engine.prefill(
      params=engine.box, padded_tokens=tokens, true_length=1
    )
    state = engine.insert(handle, state, row)
  assert "all 5 prompt banks are in use" in str(groups[5].requests[0].error)
  assert [group.bank for group in groups] == [0, 1, 2, 3, 4, None]
  assert [row and row.group for row in engine.ledger.rows[:6]] == groups
  assert len(engine.ledger.live()) == 5


def test_driver_thread_that_fails_closes_the_driver(
  rolling, batch, plain, assert_same, monkeypatch
):
  def process(self, request, *rest):
    raise KeyError("a bug in driver code")

  engine = rolling.engine()
  with monkeypatch.context() as patch:
    patch.setattr(driver.RolloutDriver, "_process_prefill_content", process)
    with collect.start(engine, "jetstream") as server:
      for _ in range(2):
        with pytest.raises(RolloutError, match="driver is closed.*a bug"):
          rolling.serve(server, batch)
  assert not _driver_threads()
  # The engine is none the worse: another server may take it.
  with collect.start(engine, "jetstream") as server:
    assert_same(rolling.serve(server, batch), plain[0])


def test_stop_in_mid_rollout_fails_it_and_ends_all_threads(rolling, batch):
  engine = rolling.engine()
  decode_chunk = engine.programs.decode_chunk
  started, goes_on = threading.Event(), threading.Event()

  def slow(*args):
    started.set()
    goes_on.wait(30)
    return decode_chunk(*args)

  engine.programs = engine.programs._replace(decode_chunk=slow)
  runner = driver.RolloutDriver(engine)
  engine.reserve(prompt_size=32, completion_size=24, group_size=4)
  caught = []

  def run():
    try:
      runner.run(_groups(batch))
    except RolloutError as error:
      caught.append(str(error))

  client = threading.Thread(target=run)
  client.start()
  assert started.wait(60)
  threading.Timer(0.3, goes_on.set).start()
  runner.stop()
  runner.stop()
  client.join(10)
  assert not client.is_alive() and not _driver_threads()
  assert caught == [
    "the rollout driver is closed: the rollout driver was stopped.; "
    "start a new one."
  ]
  with pytest.raises(RolloutError, match="driver is closed"):
    runner.run(_groups(batch))


@pytest.mark.parametrize("name", SERVERS)
def test_interrupt_of_the_main_thread_stops_cleanly(
  rolling, batch, plain, assert_same, name
):
  engine = rolling.engine()
  programs = engine.programs

  def interrupting(*args):
    engine.programs = programs
    os.kill(os.getpid(), signal.SIGINT)
    return programs.decode_chunk(*args)

  engine.programs = programs._replace(decode_chunk=interrupting)
  with (
    pytest.raises(KeyboardInterrupt),
    collect.start(engine, name) as server,
  ):
    rolling.serve(server, batch)
  assert not _driver_threads()
  with collect.start(engine, name) as server:
    assert_same(rolling.serve(server, batch), plain[0])


# A driver that nobody stops, and a request whose engine fails.
_UNSTOPPED = """
import jax
from toolrl_jax.model import decoder, presets
from toolrl_jax.rollout import collect, driver, engine
config = presets.DecoderConfig("qwen2", 32, 8, 1, 2, 1, 4, 8)
params = decoder.init_params(config, jax.random.key(0))
made = engine.RolloutEngine(config, params, slots=2, group_size=2)
jax.tree.map(lambda leaf: leaf.delete(), params)
server = collect.RolloutServer(made, driver.RolloutDriver(made))
server.rollout([[1, 2]], group_size=2, max_tokens=2)
"""


def test_process_ends_with_a_message_and_a_status_without_stop():
  environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
  process = subprocess.run(
    [sys.executable, "-c", _UNSTOPPED], capture_output=True, text=True,
    timeout=400, env=environment,
  )  # fmt: skip
  assert process.returncode == 1, process.stderr
  last = process.stderr.strip().splitlines()[-1]
  assert last.startswith("toolrl_jax.rollout.request.RolloutError: the rollout")
  assert "deleted" in last


def test_no_chunk_is_decoded_after_the_last_request(rolling, batch):
  with collect.start(rolling.engine(), "jetstream") as server:
    rolling.serve(server, batch)
    calls = server.stats.num_generate_calls
    threading.Event().wait(0.3)
    assert server.stats.num_generate_calls == calls
    assert server.engine.ledger.live() == []
    assert server.engine.ledger.num_waiting == 0


def test_lockstep_queue_holds_the_producer_until_a_chunk_is_worked_through():
  backlog = driver.LockstepQueue()
  chunk = token_forms.chunk_tokens(
    np.zeros((1, 2), np.int32), np.zeros(1, np.int32), (None,)
  )
  order = []

  def produce():
    backlog.put((0, "a request"))
    order.append("request put")
    backlog.put((0, chunk))
    order.append("chunk done")

  producer = threading.Thread(target=produce, daemon=True)
  producer.start()
  assert backlog.get(timeout=10.0)[1] == "a request"
  assert backlog.get(timeout=10.0)[1] is chunk
  producer.join(0.2)
  assert order == ["request put"]
  threading.Thread(target=backlog.get, daemon=True).start()
  producer.join(10)
  assert order == ["request put", "chunk done"]
  backlog.put(None)


def test_expecting_queue_waits_for_what_was_announced():
  backlog = driver.ExpectingQueue()
  with pytest.raises(queue.Empty):
    backlog.get(block=False)
  backlog.expect()
  threading.Timer(0.2, backlog.put, ["late"]).start()
  assert backlog.get(block=False, timeout=0.05) == "late"
  with pytest.raises(queue.Empty):
    backlog.get(block=False)
  backlog.expect()
  backlog.close()
  with pytest.raises(queue.Empty):
    backlog.get_nowait()


def test_lockstep_queue_lets_the_producer_go_when_closed():
  backlog = driver.LockstepQueue()
  chunk = token_forms.chunk_tokens(
    np.zeros((1, 2), np.int32), np.zeros(1, np.int32), (None,)
  )
  producer = threading.Thread(
    target=lambda: [backlog.put((step, chunk)) for step in range(3)],
    daemon=True,
  )
  producer.start()
  backlog.close()
  producer.join(10)
  assert not producer.is_alive()


def test_jetstream_returns_the_tokens_that_the_engine_kept(
  rolling, batch, monkeypatch
):
  channels = []
  on_close = driver.RolloutDriver._on_close

  def keep(self, channel):
    channels.append(channel)
    on_close(self, channel)

  monkeypatch.setattr(driver.RolloutDriver, "_on_close", keep)
  rolling.rollout(batch, "jetstream")
  assert len(channels) == 20
  for channel in channels:
    ids = channel.request.columns()[0].tolist()
    # JetStream leaves the stop token out; the engine's record has it.
    is_stop = ids[-1] in (3, 7, 11)
    assert channel.returned_ids == (ids[:-1] if is_stop else ids)


@pytest.mark.parametrize("runner", [driver.RolloutDriver, inline.InlineLoop])
def test_run_honours_each_groups_limit_and_temperature(
  rolling, batch, plain, runner
):
  groups = [
    Group(
      batch.prompt_ids[row], int(batch.prompt_length[row]), step=2,
      sample_indices=range(4), limit=limit, temperature=temperature,
    )
    for row, limit, temperature in ((0, 5, 1.0), (1, 18, 0.0), (3, 18, 1.0))
  ]  # fmt: skip
  engine = rolling.engine()
  engine.reserve(prompt_size=32, completion_size=24, group_size=4)
  started = runner(engine)
  started.run(groups)
  started.stop()
  assert max(request.num_tokens for request in groups[0].requests) == 5
  greedy = {request.columns()[0].tobytes() for request in groups[1].requests}
  assert len(greedy) == 1
  # Rows beside others of another temperature keep their bits.
  for sample, request in enumerate(groups[2].requests):
    mask = plain[0].completion_mask[3, sample]
    np.testing.assert_array_equal(
      request.columns()[1], plain[0].logprobs[3, sample][mask]
    )
