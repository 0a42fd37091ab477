"""The simulated airline of ACEBench's agent tasks.

From tool arguments to an observation and a changed state. Flights, prices and
how the state changes are facts of ACEBench (`scenariosen/travel.py`, commit
c9391d0), its oddities included: changing the flight costs nothing, the cabin
changes even when the difference cannot be paid, a cancelled reservation stays
in the list, and reservation res_4 is on a flight that does not exist. Code and
wording are ours, and only the documented tools exist.

Arguments are model text and may be anything; a tool may raise KeyError,
TypeError, ValueError, AttributeError or ArithmeticError for them, which its
caller turns into an observation.
"""

import datetime
from typing import Any

Observation = Any

_ECONOMY, _BUSINESS = "Economy Class", "Business Class"
# When reservations are cancelled, whatever the prompt says.
_NOW = datetime.datetime(2024, 7, 14, 6)
_AIRLINE_CANCELLED = "The airline has canceled the flight."
_LATE_FEE_FRAC = 0.1
_BAG_YUAN = 50
_FREE_BAGS = {
  "regular": {_ECONOMY: 1, _BUSINESS: 2},
  "silver": {_ECONOMY: 2, _BUSINESS: 3},
  "gold": {_ECONOMY: 3, _BUSINESS: 3},
}
# User id, name, password, cash, bank account (yuan), membership.
_USERS = (
  ("user1", "Eve", "password123", 2000.0, 50000.0, "regular"),
  ("user2", "Frank", "password456", 8000.0, 8000.0, "silver"),
  ("user3", "Grace", "password789", 1000.0, 5000.0, "gold"),
)
# Number, from, to, day of July 2024, departure, arrival, seats, prices (yuan).
_FLIGHTS = (
  ("CA1234", "Beijing", "Shanghai", 15, "08:00", "10:30", 5, 1200, 3000),
  ("MU5678", "Shanghai", "Beijing", 16, "09:00", "11:30", 3, 1900, 3000),
  ("CZ4321", "Shanghai", "Beijing", 16, "20:00", "22:00", 8, 2500, 4000),
  ("CZ4352", "Shanghai", "Beijing", 17, "20:00", "22:00", 8, 1600, 2500),
  ("MU3561", "Beijing", "Nanjing", 18, "08:00", "10:00", 8, 1500, 4000),
  ("MU1566", "Beijing", "Nanjing", 18, "20:00", "22:00", 8, 1500, 4000),
  ("CZ1765", "Nanjing", "Shenzhen", 17, "20:30", "22:00", 8, 1500, 2500),
  ("CZ1765", "Nanjing", "Shenzhen", 18, "12:30", "15:00", 8, 1500, 2500),
  ("MH1765", "Xiamen", "Chengdu", 17, "12:30", "15:00", 8, 1500, 2500),
  ("MH2616", "Chengdu", "Xiamen", 18, "18:30", "21:00", 8, 1500, 2500),
  ("MH2616", "Chengdu", "Fuzhou", 16, "18:30", "21:00", 8, 1500, 2500),
)
# User id, flight, cabin, from, to.
_RESERVATIONS = (
  ("user1", "CA1234", _ECONOMY, "Beijing", "Shanghai"),
  ("user1", "MU5678", _BUSINESS, "Shanghai", "Beijing"),
  ("user2", "MH1765", _BUSINESS, "Xiamen", "Chengdu"),
  ("user2", "MU2616", _BUSINESS, "Chengdu", "Xiamen"),
)


class Travel:
  """Flights, users and their reservations."""

  TOOLS = (
    "get_user_details",
    "get_flight_details",
    "get_reservation_details",
    "find_transfer_flights",
    "reserve_flight",
    "modify_flight",
    "cancel_reservation",
  )

  def __init__(self):
    self._users = {
      user_id: {
        "user_name": name,
        "password": password,
        "cash_balance": cash,
        "bank_balance": bank,
        "membership_level": level,
      }
      for user_id, name, password, cash, bank, level in _USERS
    }
    self._flights = [_flight(*fields) for fields in _FLIGHTS]
    self._reservations = [
      {
        "reservation_id": f"res_{number}",
        "user_id": user_id,
        "flight_no": flight_no,
        "payment_method": "bank",
        "cabin": cabin,
        "baggage": 1,
        "origin": origin,
        "destination": destination,
      }
      for number, (user_id, flight_no, cabin, origin, destination) in enumerate(
        _RESERVATIONS, start=1
      )
    ]

  def get_user_details(self, user_id: Any, password: Any) -> Observation:
    """Shows a user, without the password."""
    user = self._authenticate(user_id, password)
    if user is None:
      return _error("User or password is wrong.")
    return {key: one for key, one in user.items() if key != "password"}

  def get_flight_details(
    self, origin: Any = None, destination: Any = None
  ) -> Observation:
    """Lists the flights between two cities; either may be left open."""
    found = [
      dict(flight)
      for flight in self._flights
      if (not origin or flight["origin"] == origin)
      and (not destination or flight["destination"] == destination)
    ]
    return found or "No direct flight fits."

  def get_reservation_details(
    self, reservation_id: Any = None, user_id: Any = None
  ) -> Observation:
    """Lists reservations by their own id or else by the user's."""
    if not reservation_id and not user_id:
      return _error("A reservation id or a user id is needed.")
    key = "reservation_id" if reservation_id else "user_id"
    wanted = reservation_id or user_id
    return [
      one | {"flight_info": self._flight(one["flight_no"])}
      for one in self._reservations
      if one[key] == wanted
    ]

  def find_transfer_flights(
    self, origin_city: Any, transfer_city: Any, destination_city: Any
  ) -> Observation:
    """Lists pairs of flights; the first lands before the second departs."""
    ends = ((origin_city, transfer_city), (transfer_city, destination_city))
    firsts, seconds = (
      [f for f in self._flights if (f["origin"], f["destination"]) == pair]
      for pair in ends
    )
    found = [
      {"first_leg": first, "second_leg": second}
      for first in firsts
      for second in seconds
      # Times of this form sort as text.
      if first["arrival_time"] < second["depart_time"]
    ]
    return found or "No connection fits."

  def reserve_flight(
    self,
    user_id: Any,
    password: Any,
    flight_no: Any,
    cabin: Any,
    payment_method: Any,
    baggage_count: Any,
  ) -> Observation:
    """Books one flight; the price and the bags are paid at once."""
    user = self._authenticate(user_id, password)
    flight = self._flight(flight_no)
    if user is None:
      return "User or password is wrong."
    if flight is None:
      return f"There is no flight {flight_no!r}."
    if cabin not in (_ECONOMY, _BUSINESS):
      return f"The cabin is {_ECONOMY!r} or {_BUSINESS!r}, not {cabin!r}."
    free_bags = _FREE_BAGS[user["membership_level"]][cabin]
    total = _prices(flight)[cabin]
    total += max(baggage_count - free_bags, 0) * _BAG_YUAN
    if payment_method not in ("cash", "bank"):
      return "Payment is by cash or bank."
    if not _pay(user, payment_method, total):
      return f"The {payment_method} balance does not cover {total} yuan."
    flight["seats_available"] -= 1
    reservation_id = f"res_{len(self._reservations) + 1}"
    self._reservations.append(
      {
        "reservation_id": reservation_id,
        "user_id": user_id,
        "flight_no": flight_no,
        "payment_method": payment_method,
        "cabin": cabin,
        "baggage": baggage_count,
      }
    )
    return f"Booked as {reservation_id} for {total} yuan, bags included."

  def modify_flight(
    self,
    user_id: Any,
    reservation_id: Any,
    new_flight_no: Any = None,
    new_cabin: Any = None,
    add_baggage: Any = 0,
    new_payment_method: Any = None,
  ) -> Observation:
    """Changes flight, cabin and bags of a reservation, in this order."""
    reservation = self._reservation(user_id, reservation_id)
    if reservation is None:
      return "This user has no such reservation."
    flight = self._flight(reservation["flight_no"])
    if flight is None:
      return "The reserved flight is unknown."
    user = self._users[user_id]
    method = new_payment_method or reservation["payment_method"]
    told = []
    if new_flight_no and new_flight_no != reservation["flight_no"]:
      other = self._flight(new_flight_no)
      if other is None or _route(other) != _route(flight):
        return "The new flight is unknown or goes elsewhere."
      reservation["flight_no"] = new_flight_no
      told.append("The flight was changed.")
    if new_cabin and new_cabin != reservation["cabin"]:
      prices = _prices(flight)
      due = prices.get(new_cabin, 0) - prices.get(reservation["cabin"], 0)
      reservation["cabin"] = new_cabin
      told.append(_settle(user, method, due, "cabin"))
    if add_baggage > 0:
      level = _FREE_BAGS[user["membership_level"]]
      bags = reservation["baggage"] + add_baggage
      extra = max(0, bags - level.get(reservation["cabin"], 0))
      told.append(_settle(user, method, extra * _BAG_YUAN, "baggage"))
      reservation["baggage"] = bags
    return " ".join(told) or "Nothing had to be paid."

  def cancel_reservation(
    self, user_id: Any, reservation_id: Any, reason: Any
  ) -> Observation:
    """Pays a reservation back in cash, with a fee on the last day."""
    user = self._users.get(user_id)
    if user is None:
      return "There is no such user."
    reservation = self._reservation(user_id, reservation_id)
    if reservation is None:
      return "This user has no such reservation."
    flight = self._flight(reservation["flight_no"])
    if flight is None:
      return "The reserved flight is unknown."
    departure = datetime.datetime.fromisoformat(flight["depart_time"])
    if departure < _NOW:
      return "The flight has left; it cannot be cancelled."
    prices = _prices(flight)
    price = prices.get(reservation["cabin"], prices[_BUSINESS])
    is_free = reason == _AIRLINE_CANCELLED
    is_free = is_free or departure - _NOW > datetime.timedelta(days=1)
    fee = 0 if is_free else price * _LATE_FEE_FRAC
    user["cash_balance"] += price - fee
    return f"Cancelled. {price - fee} yuan were paid back, the fee is {fee}."

  def state(self) -> dict[str, Any]:
    """Returns what is scored."""
    return {"users": self._users, "reservations": self._reservations}

  def _authenticate(self, user_id: Any, password: Any) -> dict | None:
    user = self._users.get(user_id)
    return user if user and user["password"] == password else None

  def _flight(self, flight_no: Any) -> dict | None:
    """Finds the first flight of a number; two numbers occur twice."""
    found = (one for one in self._flights if one["flight_no"] == flight_no)
    return next(found, None)

  def _reservation(self, user_id: Any, reservation_id: Any) -> dict | None:
    wanted = (user_id, reservation_id)
    for one in self._reservations:
      if (one["user_id"], one["reservation_id"]) == wanted:
        return one
    return None


def _flight(
  flight_no: str,
  origin: str,
  destination: str,
  day: int,
  departure: str,
  arrival: str,
  seats: int,
  economy: int,
  business: int,
) -> dict[str, Any]:
  """Builds the record of one flight."""
  return {
    "flight_no": flight_no,
    "origin": origin,
    "destination": destination,
    "depart_time": f"2024-07-{day} {departure}:00",
    "arrival_time": f"2024-07-{day} {arrival}:00",
    "status": "available",
    "seats_available": seats,
    "economy_price": economy,
    "business_price": business,
  }


def _route(flight: dict[str, Any]) -> tuple[str, str]:
  return flight["origin"], flight["destination"]


def _prices(flight: dict[str, Any]) -> dict[str, int]:
  return {
    _ECONOMY: flight["economy_price"],
    _BUSINESS: flight["business_price"],
  }


def _pay(user: dict[str, Any], method: Any, amount: Any) -> bool:
  """Takes an amount (yuan) from a balance; False leaves it untouched.

  An unknown method pays nothing and succeeds, as upstream.
  """
  if method not in ("cash", "bank"):
    return True
  if user[f"{method}_balance"] - amount < 0:
    return False
  user[f"{method}_balance"] -= amount
  return True


def _settle(user: dict[str, Any], method: Any, due: Any, what: str) -> str:
  """Pays or pays back a difference (yuan) and says so."""
  if not _pay(user, method, due):
    return f"The {what} was changed, the balance does not cover {due} yuan."
  return f"The {what} was changed, {due} yuan were charged."


def _error(message: str) -> dict[str, str]:
  return {"status": "error", "message": message}
