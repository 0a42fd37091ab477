"""ACEBench's agent tasks: conversations in their worlds, on the real items."""

import json

import pytest

from toolrl_jax import types
from toolrl_jax.evaluation import (
  acebench,
  acebench_calls,
  acebench_scores,
  acebench_states,
  acebench_worlds,
  conversation,
  user_simulator,
)
from toolrl_jax.parsing import tool_calls

# Items of which a replay of the milestones reaches the gold end state, by any
# alternative. The others' milestones are at fault: unreadable quotes and a
# product that is not on the menu (0, 1; 4, 5), no login to the food platform
# (12, 13), the earliest message deleted where the end state lacks the latest
# (14 to 17), the device never unlocked (16).
_STEPS_REACHED = (2, 3, 6, 7, 8, 9, 10, 11, 18, 19)
# Here too: no unlocking (6), unreadable quotes (8 to 15).
_TURNS_REACHED = (0, 1, 2, 3, 4, 5, 7, *range(16, 30))


@pytest.fixture(scope="module")
def bench(shared_dir):
  user = user_simulator.ScriptedUser(["Please do it."] * 30)
  return acebench.AceBench(shared_dir / "data/acebench", user=user)


def _items(bench, category):
  return [item for item in bench.items() if item.category == category]


def _answer(text):
  return conversation.Answer(
    text, tool_calls.parse_completion(text, style="native")
  )


def _run(bench, item, texts):
  """Plays a model that says `texts`, then that it has finished."""
  talk = bench.converse(item)
  asks = [next(talk)]
  with pytest.raises(StopIteration) as stop:
    for text in [*texts, *["finish conversation"] * 60]:
      asks.append(talk.send(_answer(text)))
  return json.loads(json.dumps(stop.value.value)), asks


def _call(name, **arguments):
  return acebench_calls.render([types.ToolCall(name, arguments)])


def _alternatives(item):
  stones = item.row["mile_stone"]
  return stones if isinstance(stones[0], list) else [stones]


def _food(user, password, merchant, *products):
  items = [{"product": one, "quantity": number} for one, number in products]
  return [
    _call("login_food_platform", username=user, password=password),
    _call(
      "add_food_delivery_order",
      username=user,
      merchant_name=merchant,
      items=items,
    ),
  ]


def _send(sender, receiver, message, delete):
  return [
    *(_call("delete_message", message_id=one) for one in delete),
    _call(
      "send_message",
      sender_name=sender,
      receiver_name=receiver,
      message=message,
    ),
  ]


def _solution(number):
  """What a right model would do in a multi-step task, by its number."""
  unlock = [_call("turn_on_wifi"), _call("login_device")]
  if number < 2:
    order = _food("Eve", "password123", "Domino's", ("Super Supreme Pizza", 1))
    spent = "Today's spending"
    return [
      *unlock,
      *order,
      _call(
        "add_reminder",
        title=spent,
        description=f"{spent} 88.0 yuan",
        time="2024-07-15 09:30",
      ),
    ]
  if number < 4:
    pork = ("Grilled Pork Belly", 1)
    return [*unlock, *_food("Jack", "password654", "Jiutian BBQ", pork)]
  if number < 6:
    text = "Don't forget tomorrow afternoon's meeting"
    return [*unlock, *_send("Eve", "Frank", text, [4])]
  if number < 10:
    bowls = [("Stone Pot Bibimbap", 1), ("Korean Beef Bibimbap", 1)]
    order = _food("Isaac", "password654", "Rice Village Bibimbap", *bowls)
    text = "The takeout has been ordered"
    return [*unlock, *order, *_send("Isaac", "Frank", text, [4])]
  if number < 14:
    tea = ("Four Seasons Spring Milk Tea", 1)
    order = _food("Helen", "password321", "Heytea", tea)
    return [*unlock, *order, *_send("Helen", "Grace", "Already bought.", [4])]
  if number < 18:
    order = _food("Eve", "password123", "Hema Fresh", ("Fresh Gift Pack", 2))
    text = "The price of the purchased goods is 198.0 yuan."
    return [*unlock, *order, *_send("Eve", "Frank", text, [4])]
  delete = [5] if number == 18 else [5, 4]
  return [*unlock, *_send("Isaac", "Frank", "See you tomorrow", delete)]


def test_all_20_multi_step_items_can_be_solved(bench):
  num_exact = 0
  for number, item in enumerate(_items(bench, "agent_multi_step")):
    outcome, _ = _run(bench, item, _solution(number))
    assert acebench_scores.is_right(item, outcome), item.id
    assert outcome["ending"] == "finished"
    gold = item.row["ground_truth"]
    num_exact += acebench_states.is_exact_end_state(outcome["states"], gold)
  # The gold reminders of the first two are no state of this world; upstream
  # overlooks them because their class is misspelt.
  assert num_exact == 18


@pytest.mark.parametrize(
  ("category", "reached"),
  [("agent_multi_step", _STEPS_REACHED), ("agent_multi_turn", _TURNS_REACHED)],
)
def test_milestones_as_model_reach_what_upstream_reaches(
  bench, category, reached
):
  outcomes = {}
  for item in _items(bench, category):
    runs = [_run(bench, item, one)[0] for one in _alternatives(item)]
    is_right = [acebench_scores.is_right(item, one) for one in runs]
    outcomes[item.id] = runs[is_right.index(True) if any(is_right) else 0]
  scores = bench.score(outcomes)
  right = [one for one in outcomes if scores.verdicts[one]]
  assert right == [f"{category}_{number}" for number in reached]
  assert scores.table[category] == len(reached) / len(outcomes)
  if category == "agent_multi_step":
    # Upstream compares texts, so its unreadable milestones are met as well.
    assert scores.table["agent_multi_step_process"] == 1.0
    # Unreadable: 2 of 3, 2 of 4, 1 of 4, 1 of 3; all else is met.
    missed = 2 / 3 + 2 / 4 + 1 / 4 + 1 / 3
    assert scores.table["agent_multi_step_process_parsed"] == pytest.approx(
      1 - missed / 20, abs=1e-4
    )
  else:
    # Where quotes are unreadable the user gets the message; upstream then
    # counts nothing after it: 3/4, 2/3, 4/5, 4/5, 4/8, 3/7, 3/7, 2/6.
    lost = (1 / 4, 1 / 3, 1 / 5, 1 / 5, 4 / 8, 4 / 7, 4 / 7, 4 / 6)
    assert scores.table["agent_multi_turn_process"] == pytest.approx(
      1 - sum(lost) / 30, abs=1e-4
    )


def test_doing_nothing_passes_no_agent_item(bench):
  for category in acebench_scores.AGENT:
    for item in _items(bench, category):
      outcome, _ = _run(bench, item, [])
      assert outcome["states"] == []
      assert not acebench_scores.is_right(item, outcome), item.id
  # The misspelt class in the gold of one lets a single look pass; upstream
  # has it so, the exact reading has not.
  item = _items(bench, "agent_multi_turn")[7]
  look = _call(
    "view_messages_between_users", sender_name="Eve", receiver_name="Frank"
  )
  outcome, _ = _run(bench, item, [look])
  assert acebench_scores.is_right(item, outcome)
  gold = item.row["ground_truth"]
  assert not acebench_states.is_exact_end_state(outcome["states"], gold)


def test_calls_in_tool_call_blocks_are_executed(bench):
  item = _items(bench, "agent_multi_step")[3]
  texts = [
    tool_calls.render_gold(
      types.Gold(acebench_calls.read_message(one)), style="native", think=""
    )
    for one in _alternatives(item)[0]
  ]
  outcome, asks = _run(bench, item, texts)
  assert acebench_scores.is_right(item, outcome)
  assert outcome["form"] == "tool_call"
  assert outcome["process"] == item.row["mile_stone"]
  # The history is kept role by role, the turns are numbered.
  roles = [message["role"] for message in asks[2].messages]
  assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
  assert [(ask.turn, ask.step) for ask in asks] == [(0, 0), (0, 1), (0, 2)]
  assert asks[1].messages[3]["name"] == "login_food_platform"
  assert '"status": true' in asks[1].messages[3]["content"]


def test_a_multi_step_task_has_20_answers_and_unread_ones_are_told(bench):
  item = _items(bench, "agent_multi_step")[0]
  talk = bench.converse(item)
  asks = [next(talk)]
  with pytest.raises(StopIteration) as stop:
    while True:
      asks.append(talk.send(_answer("<think> a </think> What is your name?")))
  outcome = stop.value.value
  assert len(asks) == 20
  assert outcome["ending"] == "limit"
  assert outcome["process"] == ["What is your name?"] * 20
  assert outcome["form"] == "text"
  assert asks[1].messages[-1]["role"] == "user"
  assert "no API call" in asks[1].messages[-1]["content"]


def test_a_history_that_no_longer_fits_ends_the_task(bench):
  for category in acebench_scores.AGENT:
    talk = bench.converse(_items(bench, category)[0])
    next(talk)
    with pytest.raises(StopIteration) as stop:
      talk.send(_answer("")._replace(is_cut=True))
    assert stop.value.value["ending"] == "prompt too long"


def test_a_multi_turn_task_passes_between_user_and_world(bench, shared_dir):
  user = user_simulator.ScriptedUser(["I am Grace.", "To Frank."])
  bench = acebench.AceBench(shared_dir / "data/acebench", user=user)
  item = _items(bench, "agent_multi_turn")[3]
  talk = bench.converse(item)
  first = next(talk)
  assert [one["content"] for one in first.messages[1:]] == ["I am Grace."]
  # Brackets without calls, or calls without brackets, go to the user.
  second = talk.send(_answer("To whom [name]?"))
  assert second.messages[-1] == {"role": "user", "content": "To Frank."}
  assert (second.turn, second.step) == (1, 0)
  stones = item.row["mile_stone"]
  third = talk.send(_answer(stones[0]))
  assert third.messages[-1]["role"] == "tool"
  assert (third.turn, third.step) == (1, 1)
  talk.send(_answer(stones[1]))
  talk.send(_answer(stones[2]))
  with pytest.raises(StopIteration) as stop:
    # The script is over: the user ends the conversation.
    talk.send(_answer("It is done."))
  assert stop.value.value["process"] == stones
  assert acebench_scores.is_right(item, stop.value.value)


def test_a_multi_turn_task_has_40_messages(bench):
  item = _items(bench, "agent_multi_turn")[0]
  talk = bench.converse(item)
  num_asks = 1
  next(talk)
  with pytest.raises(StopIteration) as stop:
    while True:
      talk.send(_answer("What else?"))
      num_asks += 1
  assert stop.value.value["ending"] == "limit"
  assert num_asks == 20


def test_a_silent_user_is_an_error(bench, shared_dir):
  user = user_simulator.LocalUser()
  silent = acebench.AceBench(shared_dir / "data/acebench", user=user)
  item = _items(bench, "agent_multi_turn")[0]
  talk = silent.converse(item)
  assert next(talk).speaker == "user"
  with pytest.raises(user_simulator.SimulatorError):
    talk.send(_answer("")._replace(is_cut=True))


def test_agent_prompts_hold_policy_tools_and_task(bench):
  step = next(bench.converse(_items(bench, "agent_multi_step")[0]))
  phone, travel = (
    next(bench.converse(_items(bench, "agent_multi_turn")[number]))
    for number in (0, 25)
  )
  question = _items(bench, "agent_multi_step")[0].row["question"]
  assert step.messages[1]["content"] == question
  texts = [ask.messages[0]["content"] for ask in (step, phone, travel)]
  assert all("finish conversation" in text for text in texts)
  assert all("[ApiName(key1='value1'" in text for text in texts)
  assert "June 11, 2024" in texts[1] and "July 15, 2024" in texts[2]
  assert "add_reminder" in texts[0] and "modify_flight" in texts[2]
  # What the user wants is the user's secret.
  secret = _items(bench, "agent_multi_turn")[0].row["question"]
  assert all(secret not in message["content"] for message in phone.messages)


def test_read_memory_takes_what_was_there_before_the_tasks(bench):
  golds = [
    item.row["ground_truth"]
    for category in acebench_scores.AGENT
    for item in _items(bench, category)
  ]
  memory = acebench_worlds.read_memory(golds)
  assert list(memory.messages) == [1, 2, 3, 4, 5, 6]
  assert memory.messages[4]["time"] == "2024-09-09"
  ids = [one["reminder_id"] for one in memory.reminders.values()]
  assert ids == [1001, 1002, 1003]
  with pytest.raises(ValueError, match="messages 1 to 6"):
    acebench_worlds.read_memory(golds[:1])
