"""ACEBench's simulated phone and airline, by hand-worked state changes."""

import json

import pytest

from toolrl_jax import types
from toolrl_jax.evaluation import acebench_phone, acebench_worlds

pytestmark = pytest.mark.quick

_MEMORY = acebench_phone.Memory(
  messages={
    1: {
      "sender_id": "USR100",
      "receiver_id": "USR101",
      "message": "Call me",
      "time": "2024-01-02",
    },
    2: {
      "sender_id": "USR101",
      "receiver_id": "USR100",
      "message": "Later",
      "time": "2024-01-01",
    },
  },
  reminders={
    1: {"reminder_id": 1001, "title": "T", "time": "2024-01-01 10:00"}
  },
)
_PHONE = ("BaseApi", "MessageApi", "ReminderApi", "FoodPlatform")


def _phone(**switches):
  return acebench_worlds.build(_PHONE, {"BaseApi": switches}, _MEMORY)


def _do(world, name, **arguments):
  return world.execute(types.ToolCall(name, arguments))


def _state(world, name):
  return next(one[name] for one in world.states() if name in one)


def test_messages_need_device_wifi_and_room():
  world = _phone(wifi=False, logged_in=False)
  letter = {"sender_name": "Eve", "receiver_name": "Frank", "message": "Hi"}
  assert not _do(world, "send_message", **letter)["status"]
  _do(world, "login_device")
  assert "Wi-Fi" in _do(world, "send_message", **letter)["message"]
  _do(world, "turn_on_wifi")
  assert not _do(world, "send_message", **{**letter, "sender_name": "Bob"})[
    "status"
  ]
  assert _do(world, "get_latest_message_id")["message_id"] == 1
  assert _do(world, "get_earliest_message_id")["message_id"] == 2
  for number in range(3, 7):
    assert _do(world, "send_message", **letter)["status"], number
  assert "full" in _do(world, "send_message", **letter)["message"]
  assert "no order" in _do(world, "get_latest_message_id")["message"]
  assert _do(world, "delete_message", message_id=1)["status"]
  assert not _do(world, "delete_message", message_id="2")["status"]
  found = _do(world, "search_messages", user_name="Eve", keyword="LATER")
  assert [one["id"] for one in found["messages"]] == [2]
  inbox = _state(world, "MessageApi")["inbox"]
  assert list(inbox) == ["2", "3", "4", "5", "6"]
  assert inbox["3"] == {
    "sender_id": "USR100",
    "receiver_id": "USR101",
    "message": "Hi",
  }


def test_reminders_and_food():
  world = _phone(wifi=True, logged_in=True)
  new = {"title": "A", "description": "d", "time": "t"}
  for _ in range(5):
    assert _do(world, "add_reminder", **new)["status"]
  assert not _do(world, "add_reminder", **new)["status"]
  found = _do(world, "view_reminder_by_title", title="A")
  assert found["reminder"]["reminder_id"] == 2
  order = {"username": "Jack", "merchant_name": "Heytea"}
  tea = [{"product": "Cheese Milk Tea", "quantity": 2}]
  assert not _do(world, "add_food_delivery_order", items=tea, **order)["status"]
  login = {"username": "Jack", "password": "password654"}
  assert _do(world, "login_food_platform", **login)["status"]
  assert not _do(world, "login_food_platform", **login)["status"]
  assert _do(world, "add_food_delivery_order", items=tea, **order)["status"]
  # 120 less twice 25.
  assert _do(world, "check_balance", user_name="Jack") == 70.0
  for bad in (
    [{"product": "Cheese Milk Tea", "quantity": 3}],
    [{"product": "Cheese Milk Tea", "quantity": 0}],
    [{"product": "Beef Rolls", "quantity": 1}],
  ):
    wrong = _do(world, "add_food_delivery_order", items=bad, **order)
    assert wrong["status"] is False
  (placed,) = _state(world, "FoodPlatform")["orders"]
  assert placed["total_price"] == 50.0


def test_travel_books_changes_and_cancels():
  world = acebench_worlds.build(["Travel"], {}, _MEMORY)
  grace = {"user_id": "user3", "password": "password789"}
  plane = {"flight_no": "MU3561", "cabin": "Economy Class"}
  plane |= {"payment_method": "bank", "baggage_count": 5}
  assert "res_5" in _do(world, "reserve_flight", **grace, **plane)
  # 1,500 and two bags beyond the three free ones, 50 each.
  users = _state(world, "Travel")["users"]
  assert users["user3"]["bank_balance"] == 5000 - 1600
  poor = plane | {"cabin": "Business Class"}
  assert "does not cover" in _do(world, "reserve_flight", **grace, **poor)
  eve = {"user_id": "user1", "reservation_id": "res_2"}
  elsewhere = _do(world, "modify_flight", new_flight_no="MU3561", **eve)
  assert "elsewhere" in elsewhere
  _do(
    world,
    "modify_flight",
    new_flight_no="CZ4352",
    new_cabin="Economy Class",
    add_baggage=2,
    **eve,
  )
  state = _state(world, "Travel")
  changed = state["reservations"][1]
  assert changed["flight_no"] == "CZ4352" and changed["baggage"] == 3
  # The old flight's cabins differ by 1,100; two bags are not free.
  assert state["users"]["user1"]["bank_balance"] == 50000 + 1100 - 100
  first = {"user_id": "user1", "reservation_id": "res_1", "reason": "other"}
  assert "Cancelled" in _do(world, "cancel_reservation", **first)
  # More than a day before departure: 1,200 in cash, no fee.
  assert _state(world, "Travel")["users"]["user1"]["cash_balance"] == 3200
  pairs = _do(
    world,
    "find_transfer_flights",
    origin_city="Beijing",
    transfer_city="Nanjing",
    destination_city="Shenzhen",
  )
  assert [
    (p["first_leg"]["flight_no"], p["second_leg"]["depart_time"]) for p in pairs
  ] == [("MU3561", "2024-07-18 12:30:00")]


@pytest.mark.parametrize(
  ("name", "arguments"),
  [
    ("__init__", {}),
    ("state", {}),
    ("_load_scenario", {"scenario": {}}),
    ("Messages.send_message", {}),
    ("send_message", {}),
    ("send_message", {"self": 1}),
    ("turn_on_wifi", {"force": True}),
    ("delete_message", {"message_id": [1]}),
    ("delete_message", {"message_id": {"a": 1}}),
    ("search_messages", {"user_name": "Eve", "keyword": 3}),
    ("login_food_platform", {"username": [], "password": None}),
    ("search_reminders", {"keyword": "a"}),
  ],
)
def test_wrong_calls_are_observations_and_change_nothing(name, arguments):
  world = _phone(wifi=False, logged_in=True)
  before = world.states()
  seen = json.dumps(world.execute(types.ToolCall(name, arguments)))
  assert "Error during execution" in seen or "false" in seen
  assert "\\n" not in seen
  assert world.states() == before


def test_worlds_do_not_share_state():
  one, other = _phone(wifi=True), _phone(wifi=True)
  _do(one, "delete_message", message_id=1)
  assert list(_state(other, "MessageApi")["inbox"]) == ["1", "2"]
  assert list(_MEMORY.messages) == [1, 2]
  with pytest.raises(ValueError, match="Finance"):
    acebench_worlds.build(["Finance"], {}, _MEMORY)
