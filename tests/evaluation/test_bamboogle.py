"""Bamboogle: the real questions, rounds played by a scripted model."""

import json

import pytest

from toolrl_jax.data import toolrl_layout
from toolrl_jax.evaluation import bamboogle, conversation, search
from toolrl_jax.parsing import tool_calls

_CORPUS = (
  ("Citibank", "Citibank was founded in 1812 as City Bank of New York."),
  ("James Madison", "James Madison was president from 1809 to 1817."),
  ("Voyager 2", "Voyager 2 passed Uranus; it flew on a Titan IIIE rocket."),
)


@pytest.fixture(scope="module")
def path(shared_dir):
  return str(shared_dir / "data/bamboogle")


@pytest.fixture
def corpus(tmp_path):
  file = tmp_path / "corpus.jsonl"
  rows = [json.dumps({"title": t, "text": x}) for t, x in _CORPUS]
  file.write_text("\n".join(rows))
  return search.Bm25(str(file))


class _Fixed:
  """A search that finds nothing, and keeps what it was asked."""

  name = "fixed"

  def __init__(self, is_live=False):
    self.is_live, self.asked = is_live, []

  def search(self, query: str, num_pages: int) -> search.Found:
    self.asked.append((query, num_pages))
    return search.Found()

  def provenance(self):
    return {"search": self.name}


class _Marks:
  """A judge with a fixed list of verdicts."""

  def __init__(self, verdicts):
    self.verdicts, self.asked = list(verdicts), []

  def judge(self, question: str, gold: str, answer: str) -> bool | None:
    self.asked.append((question, gold, answer))
    return self.verdicts.pop(0)

  def provenance(self):
    return {"judge": "marks"}


def _call(query, name="Search", key="query"):
  call = json.dumps({"name": name, "parameters": {key: query}})
  return f"<think> t </think>\n<tool_call>\n{call}\n</tool_call>"


def _say(text):
  return f"<think> t </think>\n<response> {text} </response>"


def _until_asked(talk, reply):
  """Lets the conversation go on to its next question to the model."""
  wanted = talk.send(reply)
  while isinstance(wanted, conversation.Wait):
    wanted = talk.send(wanted.call())
  return wanted


def _play(bench, texts, item=None, style="toolrl"):
  """Plays the texts as the model's answers; returns asks and outcome."""
  item = item or bench.items()[0]
  talk, asks, reply = bench.converse(item), [], None
  try:
    for text in texts:
      asks.append(_until_asked(talk, reply))
      parsed = tool_calls.parse_completion(text, style=style)
      reply = conversation.Answer(text, parsed)
    _until_asked(talk, reply)
  except StopIteration as stop:
    return asks, json.loads(json.dumps(stop.value))
  raise AssertionError("the conversation wants more answers")


def test_items_are_the_125_questions(path):
  items = bamboogle.Bamboogle(path, search=None).items()
  assert len({item.id for item in items}) == 125
  assert items[1].row == {
    "question": "What rocket was the first spacecraft that ever approached"
    " Uranus launched on?",
    "gold": "Titan IIIE",
  }
  assert len(bamboogle.Bamboogle(path, search=None, max_items=7).items()) == 7


def test_name_says_offline_unless_the_search_is_live(path, corpus):
  judge = _Marks([])
  for source, marks, headline in (
    (None, None, "bamboogle_offline/exact_match"),
    (corpus, None, "bamboogle_offline/exact_match"),
    (_Fixed(), judge, "bamboogle_offline/judged"),
    (_Fixed(is_live=True), judge, "bamboogle/judged"),
  ):
    bench = bamboogle.Bamboogle(path, search=source, judge=marks)
    assert bench.headline == headline
    assert bench.name == headline.partition("/")[0]
    assert bench.headline in bench.score({}).table
    assert all(
      key.startswith(bench.name + "/") for key in bench.score({}).table
    )


def test_two_searches_and_an_answer(path, corpus):
  bench = bamboogle.Bamboogle(path, search=corpus)
  asks, outcome = _play(
    bench,
    [_call("Citibank founded"), _call("president in 1812"), _say("J. Madison")],
  )
  assert outcome["queries"] == ["Citibank founded", "president in 1812"]
  assert outcome["answer"] == "J. Madison"
  assert outcome["num_rounds"] == 3
  assert [(ask.turn, ask.step) for ask in asks] == [(0, 0), (0, 1), (0, 2)]
  assert {ask.tools[0]["name"] for ask in asks} == {"Search"}
  assert (
    asks[0]
    .messages[0]["content"]
    .startswith(
      "Who was president of the United States in the year that Citibank was"
    )
  )
  assert asks[1].messages[2] == {
    "role": "tool",
    "name": "Search",
    "content": "1. Citibank\n- Snippet: Citibank was founded in 1812 as City"
    " Bank of New York.",
  }
  # The next prompt holds the first call, and reads back in the layout.
  text = toolrl_layout.dialogue_text(asks[2].messages)
  assert '"query": "Citibank founded"' in text
  assert len(toolrl_layout.parse_dialogue(text)) == 5


def test_the_last_of_four_rounds_forbids_calls(path):
  source = _Fixed()
  bench = bamboogle.Bamboogle(path, search=source)
  asks, outcome = _play(bench, [_call(f"q{n}") for n in range(4)])
  assert source.asked == [("q0", 5), ("q1", 5), ("q2", 5)]
  assert [(ask.turn, ask.step) for ask in asks] == (
    [(0, 0), (0, 1), (0, 2), (1, 0)]
  )
  assert asks[3].messages[-1]["role"] == "user"
  assert "No further search" in asks[3].messages[-1]["content"]
  # The text of a call is no answer, although it may name the gold.
  assert outcome["answer"] == ""
  assert outcome["num_rounds"] == 4


def test_only_the_first_call_of_a_round_is_made(path):
  source = _Fixed()
  two = _call("a").replace(
    "\n</tool_call>",
    '\n{"name": "Search", "parameters": {"query": "b"}}\n</tool_call>',
  )
  bench = bamboogle.Bamboogle(path, search=source)
  _, outcome = _play(bench, [two, _say("x")])
  assert outcome["queries"] == ["a"]


def test_an_unreadable_call_costs_a_round_and_asks_again(path):
  bench = bamboogle.Bamboogle(path, search=_Fixed())
  bad = "<think> t </think>\n<tool_call>\n{'name': \n</tool_call>"
  asks, outcome = _play(bench, [bad, bad, bad, _say("x")])
  assert asks[0].messages == asks[1].messages == asks[2].messages
  assert (outcome["queries"], outcome["num_rounds"]) == ([], 4)
  assert outcome["answer"] == "x"


@pytest.mark.parametrize(
  ("call", "word"),
  [
    (_call("q", name="os.system"), "no tool of that name"),
    (_call("q", key="q"), "must be a text"),
    (_call(["q"]), "must be a text"),
    (_call(" "), "must be a text"),
    (_call("q" * 1001), "at most 1000"),
  ],
)
def test_a_wrong_call_is_told_to_the_model_and_not_made(path, call, word):
  source = _Fixed()
  bench = bamboogle.Bamboogle(path, search=source)
  asks, outcome = _play(bench, [call, _say("x")])
  assert word in asks[1].messages[-1]["content"]
  assert source.asked == outcome["queries"] == []


def test_closed_book_asks_once_without_a_tool(path):
  bench = bamboogle.Bamboogle(path, search=None)
  (ask,), outcome = _play(bench, [_call("q")])
  assert ask.tools == ()
  assert outcome["answer"] == ""
  (ask,), outcome = _play(bench, ["<think> t </think> Titan IIIE"])
  assert outcome["answer"] == "Titan IIIE"


def test_answers_are_read_in_the_native_layout(path):
  bench = bamboogle.Bamboogle(path, search=None)
  text = "<think>\nso\n</think>\n\nTitan IIIE"
  _, outcome = _play(bench, [text], style="native")
  assert outcome["answer"] == "Titan IIIE"
  _, outcome = _play(bench, ["<think>\nso Titan IIIE"], style="native")
  assert outcome["answer"] == ""


def test_gold_as_model_is_right_125_times(path):
  bench = bamboogle.Bamboogle(path, search=_Fixed())
  outcomes = {}
  for item in bench.items():
    answer = _say(item.row["gold"])
    _, outcomes[item.id] = _play(bench, [_call("q"), answer], item)
  scores = bench.score(outcomes)
  assert sum(scores.verdicts.values()) == len(scores.verdicts) == 125
  assert scores.counts == {"bamboogle_offline": 125}
  assert scores.table == {
    f"bamboogle_offline/{name}": 1.0
    for name in ("exact_match", "f1", "contains", "mean_calls")
  }


def test_score_by_hand_over_four_questions(path):
  bench = bamboogle.Bamboogle(path, search=_Fixed(), max_items=4)
  golds = [item.row["gold"] for item in bench.items()]
  assert golds == ["james madison", "Titan IIIE", "1999", "David Dinkins"]
  ids = [item.id for item in bench.items()]
  scores = bench.score(
    {
      ids[0]: {"answer": "James Madison", "queries": ["a", "b"]},
      ids[1]: {"answer": "on a Titan IIIE", "queries": ["a"]},
      ids[2]: {"answer": "2000", "queries": []},
    }
  )
  assert scores.verdicts == dict(zip(ids, (1.0, 0.0, 0.0, 0.0)))
  assert scores.table == pytest.approx(
    {
      "bamboogle_offline/exact_match": 1 / 4,
      # 1, 2 * 2 / (3 + 2) and two zeros.
      "bamboogle_offline/f1": (1 + 4 / 5) / 4,
      "bamboogle_offline/contains": 2 / 4,
      "bamboogle_offline/mean_calls": 3 / 4,
    }
  )
  assert "not comparable with published" in scores.notes[0]
  assert "No judge was asked" in scores.notes[1]


def test_the_judge_decides_where_there_is_one(path):
  judge = _Marks([True, False, None])
  bench = bamboogle.Bamboogle(
    path, search=_Fixed(is_live=True), judge=judge, max_items=3
  )
  outcomes = {
    item.id: _play(bench, [_say("some answer")], item)[1]
    for item in bench.items()
  }
  scores = bench.score(outcomes)
  assert judge.asked[0] == (
    bench.items()[0].row["question"],
    "james madison",
    "some answer",
  )
  assert list(scores.verdicts.values()) == [1.0, 0.0, 0.0]
  assert scores.table["bamboogle/judged"] == pytest.approx(1 / 3)
  assert scores.notes == ("The judge gave no verdict on 1 answers.",)


def test_a_failed_search_is_told_counted_and_noted(path, tmp_path):
  records = tmp_path / "searches.jsonl"
  records.write_text("")
  bench = bamboogle.Bamboogle(path, search=search.Recorded(str(records)))
  asks, outcome = _play(bench, [_call("q"), _say("x")])
  assert asks[1].messages[-1]["content"] == "The search failed."
  assert (outcome["queries"], outcome["num_failed"]) == (["q"], 1)
  notes = bench.score({bench.items()[0].id: outcome}).notes
  assert "1 searches failed; the model was told so." in notes


@pytest.mark.parametrize(
  "outcome",
  [
    {},
    {"answer": 5, "queries": "abc", "num_failed": "many", "judged": "yes"},
    {"answer": "\ud800" * 9, "queries": [1, None]},
  ],
)
def test_score_takes_a_broken_outcome_for_a_failed_item(path, outcome):
  bench = bamboogle.Bamboogle(path, search=None)
  scores = bench.score({bench.items()[0].id: outcome})
  assert sum(scores.verdicts.values()) == 0


def test_bamboogle_names_a_missing_or_broken_file(tmp_path):
  with pytest.raises(ValueError, match="needs its JSON file"):
    bamboogle.Bamboogle(str(tmp_path), search=None)
  file = tmp_path / "data.json"
  for text in ("{", "[1]", '[{"Question": "q"}]', "3"):
    file.write_text(text)
    with pytest.raises(ValueError, match="must be a JSON list") as error:
      bamboogle.Bamboogle(str(file), search=None)
    assert "\n" not in str(error.value)


def test_provenance_names_questions_search_and_judge(path, corpus):
  record = bamboogle.Bamboogle(path, search=corpus).provenance()
  assert record["questions"].startswith("82d2ff3996093300")
  assert record["search"] == "bm25 k1=1.5 b=0.75"
  assert record["judge"] == "none"
  assert len(record["search_corpus"]) == 64
  closed = bamboogle.Bamboogle(path, search=None).provenance()
  assert closed["search"] == "none"
  assert closed["wording"] == record["wording"]


def test_notes_say_when_the_questions_are_others(tmp_path):
  file = tmp_path / "data.json"
  file.write_text('[{"Question": "q", "Answer": "a"}]')
  notes = bamboogle.Bamboogle(str(file), search=None).score({}).notes
  assert "not the file of ToolRL" in notes[-1]
