"""Call lists in brackets: what is read, and that nothing is ever run."""

import pytest

from toolrl_jax import types
from toolrl_jax.evaluation import acebench_calls

pytestmark = pytest.mark.quick


def _only(text):
  (call,) = acebench_calls.read(text)
  return call


def test_read_reads_names_and_values():
  text = """[ai.find(q='a b', n=-2, x=1.5, ok=True, no=None, l=[1, 'z'],
    d={'k': {'m': []}}), other()]"""
  assert acebench_calls.read(text) == (
    types.ToolCall(
      "ai.find",
      {
        "q": "a b",
        "n": -2,
        "x": 1.5,
        "ok": True,
        "no": None,
        "l": [1, "z"],
        "d": {"k": {"m": []}},
      },
    ),
    types.ToolCall("other", {}),
  )


@pytest.mark.parametrize(
  ("argument", "value"),
  [
    ("true", "true"),
    ("60 * 24", 1440),
    ("1 / 0", "1 / 0"),
    ("10 ** 9", "10 ** 9"),
    ("(1, 2)", (1, 2)),
    ("1e999", "inf"),
    ("g(a=1)", {"g": {"a": 1}}),
    ("os.getcwd()", {"os.getcwd": {}}),
    ("lambda: 1", "lambda: 1"),
    ("x[0]", "x[0]"),
    ("...", "..."),
    # As upstream, the last of two equal keywords counts.
    ("1, a=2", 2),
    ("b'z'", "b'z'"),
  ],
)
def test_read_takes_odd_values_without_running_them(argument, value):
  assert _only(f"[f(a={argument})]").arguments == {"a": value}


@pytest.mark.parametrize(
  "text",
  [
    "",
    "f(a=1)",
    "['a sentence']",
    "[f(a=1), 2]",
    "[f(a=1)",
    "[f(**d)]",
    "[f(a={[]: 1})]",
    "[f(a={1, 2})]",
    "[f()(a=1)]",
    "\0",
    "[f(a='\ud800')]",
    "[f(a=" + "9" * 5000 + ")]",
    "[f(a=" + "[" * 100 + "]" * 100 + ")]",
    "[f(a=" + "[" * 90 + "]" * 90 + ")]",
    "[f(a=" + "-" * 9000 + "1)]",
    "[f(a=" + "+".join("1" * 4000) + ")]",
    "[f(a='" + "x" * acebench_calls.MAX_CHARS + "')]",
  ],
  ids=lambda text: text[:12],
)
def test_read_refuses_other_text(text):
  assert acebench_calls.read(text) is None


def test_reading_hostile_text_has_no_effect(tmp_path):
  file = tmp_path / "written"
  for payload in (
    f"[f(x=open({str(file)!r}, 'w').close() or 0)]",
    f"[f(x=__import__('pathlib').Path({str(file)!r}).touch() + 0)]",
    f"[__import__('os').system('touch {file}')]",
    f"[f(x=[i for i in [open({str(file)!r}, 'w')]])]",
    f"[f(x=(lambda: open({str(file)!r}, 'w'))() * 2)]",
  ):
    acebench_calls.read(payload)
    acebench_calls.read_first_block(payload)
    acebench_calls.read_message(payload)
  assert not file.exists()


def test_read_first_block_finds_the_list_in_prose():
  text = "Sure:\n```\n[f(a=[1, 2]), g()]\n``` [h()]"
  calls = acebench_calls.read_first_block(text)
  assert [call.name for call in calls] == ["f", "g"]
  assert acebench_calls.read_first_block("[f(a=1)") is None
  assert acebench_calls.read_first_block("no list") is None
  # The first block decides, as upstream.
  assert acebench_calls.read_first_block("[note] [f()]") is None


def test_read_message_forgives_missing_brackets():
  call = types.ToolCall("f", {"a": [{"p": "x"}]})
  for text in (
    "[f(a=[{'p': 'x'}])]",
    " f(a=[{'p': 'x'}])",
    "[f(a=[{'p': 'x'}])",
    "[f(a=[{'p': 'x'}])] \n",
  ):
    assert acebench_calls.read_message(text) == (call,)
  for text in ("finish conversation", "[done]", "[]", "[f(), 1]", "f() now"):
    assert acebench_calls.read_message(text) is None


def test_render_is_read_back():
  calls = (
    types.ToolCall("a.b", {"q": 'it\'s "so"\n', "l": [1, None, {"k": 2.5}]}),
    types.ToolCall("c", {}),
  )
  assert acebench_calls.read(acebench_calls.render(calls)) == calls


def test_as_json_leaves_only_what_a_file_can_hold():
  value = {"a": ("x", 1), 2: "\ud800b", "c": {object}}
  plain = acebench_calls.as_json(value)
  assert plain["a"] == ["x", 1]
  assert plain["2"] == "?b"
  assert isinstance(plain["c"], str)
