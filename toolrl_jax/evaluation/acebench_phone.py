"""The simulated phone of ACEBench's agent tasks: messages, reminders, food.

From tool arguments to an observation and a changed state. What each tool
checks, in which order, and how the state changes are facts of ACEBench
(`scenariosen/phone_platform`, commit c9391d0); the code and the wording of the
observations are ours. Only the documented tools exist: upstream's classes
have some more that no model is told of.

Arguments are model text and may be anything; a tool may raise KeyError,
TypeError, ValueError, AttributeError or ArithmeticError for them, which its
caller turns into an observation. Nothing here knows conversations or scores.
"""

import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

Observation = Any

_CAPACITY = 6
_PEOPLE = {
  "Eve": "USR100",
  "Frank": "USR101",
  "Grace": "USR102",
  "Helen": "USR103",
  "Isaac": "USR104",
  "Jack": "USR105",
}
# Food accounts: user id, password, balance in yuan.
_ACCOUNTS = {
  "Eve": ("U100", "password123", 500.0),
  "Frank": ("U101", "password456", 300.0),
  "Grace": ("U102", "password789", 150.0),
  "Helen": ("U103", "password321", 800.0),
  "Isaac": ("U104", "password654", 400.0),
  "Jack": ("U105", "password654", 120.0),
}
# Merchants' menus: product to price in yuan.
_MENUS = {
  "Domino's": {"Margherita Pizza": 68.0, "Super Supreme Pizza": 88.0},
  "Rice Village Bibimbap": {
    "Stone Pot Bibimbap": 35.0,
    "Korean Beef Bibimbap": 45.0,
  },
  "Haidilao": {"Beef Rolls": 68.0, "Seafood Platter": 88.0},
  "Heytea": {"Cheese Milk Tea": 25.0, "Four Seasons Spring Milk Tea": 22.0},
  "Hema Fresh": {"Organic Vegetable Pack": 15.0, "Fresh Gift Pack": 99.0},
  "Jiutian BBQ": {"Korean Grilled Beef": 128.0, "Grilled Pork Belly": 78.0},
}
_LOCKED = "The device is not logged in."


class Memory(NamedTuple):
  """What the phone holds before a task starts.

  Attributes:
    messages: Message id to sender_id, receiver_id, message, time.
    reminders: Reminder id to reminder_id, title, description, time, notified.
  """

  messages: Mapping[int, Mapping[str, Any]]
  reminders: Mapping[int, Mapping[str, Any]]


class Device:
  """The phone itself; its other apps share its two switches.

  Upstream gives each app switches of its own and flips them all at once.

  Attributes:
    wifi: Wi-Fi is on.
    logged_in: The device is unlocked.
  """

  TOOLS = ("turn_on_wifi", "login_device")

  def __init__(self, *, wifi: bool, logged_in: bool):
    self.wifi = wifi
    self.logged_in = logged_in

  def turn_on_wifi(self) -> Observation:
    """Turns Wi-Fi on."""
    self.wifi = True
    return _done("Wi-Fi is on now.")

  def login_device(self) -> Observation:
    """Unlocks the device."""
    self.logged_in = True
    return _done("The device is logged in now.")

  def state(self) -> dict[str, Any]:
    """Returns what is scored."""
    return {"wifi": self.wifi, "logged_in": self.logged_in}


class Messages:
  """The inbox; it holds six messages at most."""

  TOOLS = (
    "send_message",
    "delete_message",
    "view_messages_between_users",
    "search_messages",
    "get_latest_message_id",
    "get_earliest_message_id",
  )

  def __init__(self, device: Device, memory: Memory):
    self._device = device
    self._inbox = {key: dict(one) for key, one in memory.messages.items()}
    self._last_id = max(self._inbox, default=0)

  def send_message(
    self, sender_name: Any, receiver_name: Any, message: Any
  ) -> Observation:
    """Sends a message; a sent one bears no time."""
    if not self._device.logged_in:
      return _failed(_LOCKED)
    if not self._device.wifi:
      return _failed("No message can be sent while Wi-Fi is off.")
    if len(self._inbox) >= _CAPACITY:
      return _failed(
        "The inbox is full. Ask the user which message is to be deleted."
      )
    if sender_name not in _PEOPLE or receiver_name not in _PEOPLE:
      return _failed("No such sender or receiver.")
    self._last_id += 1
    self._inbox[self._last_id] = {
      "sender_id": _PEOPLE[sender_name],
      "receiver_id": _PEOPLE[receiver_name],
      "message": message,
    }
    return _done(f"The message was sent to {receiver_name}.")

  def delete_message(self, message_id: Any) -> Observation:
    """Deletes one message."""
    if not self._device.logged_in:
      return _failed(_LOCKED)
    if message_id not in self._inbox:
      return _failed("There is no message of this id.")
    del self._inbox[message_id]
    return _done(f"Message {message_id} was deleted.")

  def view_messages_between_users(
    self, sender_name: Any, receiver_name: Any
  ) -> Observation:
    """Lists what one person sent another."""
    if not self._device.logged_in:
      return _failed(_LOCKED)
    if sender_name not in _PEOPLE or receiver_name not in _PEOPLE:
      return _failed("No such sender or receiver.")
    ends = (_PEOPLE[sender_name], _PEOPLE[receiver_name])
    found = [
      {
        "id": key,
        "sender": sender_name,
        "receiver": receiver_name,
        "message": one["message"],
      }
      for key, one in self._inbox.items()
      if (one["sender_id"], one["receiver_id"]) == ends
    ]
    if not found:
      return _failed("There are no such messages.")
    return {"status": True, "messages": found}

  def search_messages(self, user_name: Any, keyword: Any) -> Observation:
    """Finds a person's messages, sent or received, by a keyword."""
    if user_name not in _PEOPLE:
      return _failed("No such user.")
    person, keyword = _PEOPLE[user_name], keyword.lower()
    found = [
      {
        "id": key,
        "sender_id": one["sender_id"],
        "receiver_id": one["receiver_id"],
        "message": one["message"],
      }
      for key, one in self._inbox.items()
      if person in (one["sender_id"], one["receiver_id"])
      and keyword in one["message"].lower()
    ]
    if not found:
      return _failed("No message holds this keyword.")
    return {"status": True, "messages": found}

  def get_latest_message_id(self) -> Observation:
    """Finds the message of the latest date."""
    return self._extreme("latest", max)

  def get_earliest_message_id(self) -> Observation:
    """Finds the message of the earliest date."""
    return self._extreme("earliest", min)

  def _extreme(self, word: str, choose: Any) -> Observation:
    """Finds a message by its date; messages sent in the task bear none."""
    if not self._device.logged_in:
      return _failed(_LOCKED)
    if not self._inbox:
      return _failed("The inbox is empty.")
    if any("time" not in one for one in self._inbox.values()):
      return _failed("A message bears no date, so no order can be told.")
    dates = {
      key: datetime.date.fromisoformat(one["time"])
      for key, one in self._inbox.items()
    }
    key = choose(dates, key=dates.__getitem__)
    return _done(f"The {word} message has id {key}.") | {"message_id": key}

  def state(self) -> dict[str, Any]:
    """Returns what is scored."""
    return {"inbox": self._inbox}


class Reminders:
  """The reminders; there are six at most."""

  TOOLS = ("add_reminder", "view_reminder_by_title")

  def __init__(self, device: Device, memory: Memory):
    self._device = device
    self._reminders = {key: dict(one) for key, one in memory.reminders.items()}
    self._last_id = max(self._reminders, default=0)

  def add_reminder(
    self, title: Any, description: Any, time: Any
  ) -> Observation:
    """Adds a reminder."""
    if not self._device.logged_in:
      return _failed(_LOCKED)
    if len(self._reminders) >= _CAPACITY:
      return _failed("There is no room for another reminder.")
    self._last_id += 1
    self._reminders[self._last_id] = {
      "reminder_id": self._last_id,
      "title": title,
      "description": description,
      "time": time,
      "notified": False,
    }
    return _done(f"Reminder {title!r} was added.")

  def view_reminder_by_title(self, title: Any) -> Observation:
    """Shows the first reminder of a title."""
    if not self._device.logged_in:
      return _failed(_LOCKED)
    for one in self._reminders.values():
      if one["title"] == title:
        return {"status": True, "reminder": dict(one)}
    return _failed(f"No reminder has the title {title!r}.")

  def state(self) -> dict[str, Any]:
    """Returns what is scored."""
    return {"reminder_list": self._reminders}


class FoodPlatform:
  """The food delivery platform with its accounts and orders."""

  TOOLS = (
    "login_food_platform",
    "check_balance",
    "add_food_delivery_order",
    "get_products",
  )

  def __init__(self, device: Device):
    self._device = device
    self._users: dict[str, dict[str, Any]] = {
      name: {"user_id": user_id, "password": password, "balance": balance}
      for name, (user_id, password, balance) in _ACCOUNTS.items()
    }
    self._logged_in_users: list[Any] = []
    self._orders: list[dict[str, Any]] = []

  def login_food_platform(self, username: Any, password: Any) -> Observation:
    """Logs a user in, once."""
    if not self._device.wifi:
      return _failed("No login is possible while Wi-Fi is off.")
    if username not in self._users:
      return _failed("No such user.")
    if self._users[username]["password"] != password:
      return _failed("The password is wrong.")
    if username in self._logged_in_users:
      return _failed(f"{username} is logged in already.")
    self._logged_in_users.append(username)
    return _done(f"{username} is logged in now.")

  def check_balance(self, user_name: Any) -> Observation:
    """Tells a balance in yuan; 0 for someone unknown."""
    account = self._users.get(user_name)
    return account["balance"] if account else 0.0

  def get_products(self, merchant_name: Any) -> Observation:
    """Lists a merchant's menu."""
    menu = _MENUS.get(merchant_name)
    if menu is None:
      return _failed(f"There is no merchant {merchant_name!r}.")
    return [{"product": name, "price": price} for name, price in menu.items()]

  def add_food_delivery_order(
    self, username: Any, merchant_name: Any, items: Any
  ) -> Observation:
    """Places an order and takes its price from the balance."""
    if username not in self._logged_in_users:
      return _failed(f"{username} is not logged in to the food platform.")
    menu = _MENUS.get(merchant_name)
    if menu is None:
      return _failed(f"There is no merchant {merchant_name!r}.")
    ordered = []
    for item in items:
      product, quantity = item.get("product"), item.get("quantity", 1)
      if not isinstance(quantity, int) or quantity <= 0:
        return _failed(f"{quantity!r} of {product} cannot be ordered.")
      if product not in menu:
        return _failed(f"{merchant_name} does not sell {product!r}.")
      price = menu[product]
      ordered.append(
        {"product": product, "quantity": quantity, "price_per_unit": price}
      )
    total = sum(
      (one["price_per_unit"] * one["quantity"] for one in ordered), 0.0
    )
    account = self._users[username]
    if total > account["balance"]:
      return _failed("The balance does not cover the order.")
    account["balance"] -= total
    self._orders.append(
      {
        "user_name": username,
        "merchant_name": merchant_name,
        "items": ordered,
        "total_price": total,
      }
    )
    return _done(f"Ordered from {merchant_name} for {total} yuan in all.")

  def state(self) -> dict[str, Any]:
    """Returns what is scored."""
    return {
      "users": self._users,
      "logged_in_users": self._logged_in_users,
      "orders": self._orders,
    }


def _done(message: str) -> dict[str, Any]:
  return {"status": True, "message": message}


def _failed(message: str) -> dict[str, Any]:
  return {"status": False, "message": message}
