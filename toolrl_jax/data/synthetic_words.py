"""Words of the generated task: what tools exist and how people ask for them.

Only constants, read by `toolrl_jax.data.synthetic`. Values come from short
closed lists of single words: a model of a million parameters learns to copy
those within minutes, and does not learn to copy free text.
"""

from typing import NamedTuple

CITIES = (
  "Paris", "London", "Rome", "Berlin", "Madrid", "Vienna", "Oslo", "Tokyo",
)  # fmt: skip
PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry")
ITEMS = ("lamp", "chair", "book", "phone", "camera", "bottle", "guitar", "bike")
TOPICS = (
  "football", "music", "history", "science", "health", "travel", "politics",
  "movies",
)  # fmt: skip
DAYS = (
  "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
HOURS = ("noon", "midnight", "dawn", "dusk", "sunrise", "sunset")
CURRENCIES = ("euros", "dollars", "pounds", "yen")
COUNTS = (2, 3, 4, 5, 6, 7, 8, 9)

# Disjoint, so that a value alone says which list it is from.
VOCABULARIES = (
  CITIES, PEOPLE, ITEMS, TOPICS, DAYS, HOURS, CURRENCIES, COUNTS,
)  # fmt: skip


class Slot(NamedTuple):
  """A place in a request that a value fills.

  Attributes:
    parameters: Names that a tool may give its parameter.
    values: What may stand there.
    description: Its description in the tool document.
  """

  parameters: tuple[str, ...]
  values: tuple[str | int, ...]
  description: str


SLOTS = {
  "city": Slot(("city", "place"), CITIES, "name of the city"),
  "origin": Slot(("origin",), CITIES, "city where the trip starts"),
  "goal": Slot(("goal",), CITIES, "city where the trip ends"),
  "day": Slot(("day", "date"), DAYS, "day of the week"),
  "hour": Slot(("hour",), HOURS, "time of the day"),
  "person": Slot(("person", "contact"), PEOPLE, "first name"),
  "item": Slot(("item",), ITEMS, "product of the shop"),
  "topic": Slot(("topic",), TOPICS, "subject"),
  "count": Slot(("count",), COUNTS, "how many"),
  "source": Slot(("source",), CURRENCIES, "currency to change"),
  "target": Slot(("target",), CURRENCIES, "currency to get"),
}


class Intent(NamedTuple):
  """Something a tool does.

  Attributes:
    names: Tool names for it.
    descriptions: Tool descriptions for it.
    slots: Keys of `SLOTS`, in the order of the tool's parameters.
    requests: Sentences that ask for it, with slots in braces.
  """

  names: tuple[str, ...]
  descriptions: tuple[str, ...]
  slots: tuple[str, ...]
  requests: tuple[str, ...]


INTENTS = {
  "weather": Intent(
    ("get_weather", "sky_report"),
    ("weather in a city", "says if it rains"),
    ("city", "day"),
    (
      "Will it rain in {city} on {day}?",
      "What will the weather be on {day} in {city}?",
      "Give me the weather for {city} on {day}.",
    ),
  ),
  "flight": Intent(
    ("book_flight", "reserve_seat"),
    ("books a plane", "sells plane tickets"),
    ("origin", "goal", "day"),
    (
      "Book a plane from {origin} to {goal} on {day}.",
      "On {day} I fly to {goal} from {origin}, get me a ticket.",
      "I need a seat on the plane from {origin} to {goal} on {day}.",
    ),
  ),
  "train": Intent(
    ("find_train", "rail_search"),
    ("finds trains", "lists rail trips"),
    ("origin", "goal"),
    (
      "Which train goes from {origin} to {goal}?",
      "Find me a train to {goal} from {origin}.",
      "I want to go by rail from {origin} to {goal}.",
    ),
  ),
  "hotel": Intent(
    ("book_hotel", "rent_room"),
    ("books a hotel", "rents rooms for the night"),
    ("city", "count", "day"),
    (
      "Get a hotel in {city} for {count} guests on {day}.",
      "We are {count} and sleep in {city} on {day}, book a room.",
      "Rent a room on {day} in {city} for {count} people.",
    ),
  ),
  "dinner": Intent(
    ("book_table", "find_dinner"),
    ("books a restaurant", "finds a place to eat"),
    ("city", "count", "hour"),
    (
      "Book a table in {city} for {count} people at {hour}.",
      "We are {count} and want to eat in {city} at {hour}.",
      "At {hour} we need a restaurant for {count} in {city}.",
    ),
  ),
  "message": Intent(
    ("send_message", "write_note"),
    ("sends a message", "writes to a contact"),
    ("person", "topic"),
    (
      "Send {person} a message about {topic}.",
      "Write to {person} about {topic}.",
      "Tell {person} the latest on {topic} in a message.",
    ),
  ),
  "call": Intent(
    ("plan_call", "dial_contact"),
    ("plans a phone call", "calls a contact"),
    ("person", "hour"),
    (
      "Call {person} at {hour}.",
      "Please ring {person} at {hour}.",
      "At {hour} I want to speak with {person}.",
    ),
  ),
  "meeting": Intent(
    ("add_meeting", "new_event"),
    ("adds a meeting", "fills the calendar"),
    ("person", "day", "hour"),
    (
      "Plan a meeting with {person} on {day} at {hour}.",
      "I meet {person} at {hour} on {day}, add it to my calendar.",
      "Put {person} in the calendar for {day} at {hour}.",
    ),
  ),
  "order": Intent(
    ("order_item", "buy_product"),
    ("orders from the shop", "buys products"),
    ("item", "count"),
    (
      "Order the {item}, I want {count} of them.",
      "Buy {count} times the {item}.",
      "I would like {count} of the {item}, order it.",
    ),
  ),
  "price": Intent(
    ("get_price", "item_cost"),
    ("price of a product", "says what things cost"),
    ("item",),
    (
      "What does the {item} cost?",
      "How much is the {item}?",
      "Look up the price of the {item}.",
    ),
  ),
  "news": Intent(
    ("get_news", "read_headlines"),
    ("latest news", "finds headlines"),
    ("topic", "count"),
    (
      "Show me {count} news about {topic}.",
      "Read me {count} headlines on {topic}.",
      "What is new in {topic}? I have time for {count} stories.",
    ),
  ),
  "money": Intent(
    ("convert_money", "exchange_rate"),
    ("converts money", "changes currencies"),
    ("count", "source", "target"),
    (
      "Change {count} {source} into {target}.",
      "How many {target} do I get for {count} {source}?",
      "I have {count} {source} and need {target}.",
    ),
  ),
}  # fmt: skip

# Requests that no intent above covers.
FAR_REQUESTS = (
  "Tell me a joke about {topic}.",
  "Why is the sky blue?",
  "Sing a song for {person}.",
  "Who invented the {item}?",
  "How do birds sleep?",
  "Draw a picture of {city}.",
  "What is the square of {count}?",
  "Explain {topic} to a child.",
  "Spell the word {item}.",
  "Write a poem about {day}.",
  "How old is the moon?",
  "What rhymes with {item}?",
  "Why do cats like boxes?",
  "Who was the first king of {city}?",
  "Invent a fairy tale.",
  "How do I repair the {item}?",
)
JOINTS = (" Also: ", " Then: ", " And one more thing: ")
REFUSAL = "No tool fits."
