import functools
import json

import pytest

from toolrl_jax import types
from toolrl_jax.serving import chat_request, history
from toolrl_jax.serving.api_error import ApiError

pytestmark = pytest.mark.quick

USER = {"role": "user", "content": "hi"}
TOOL = {
  "type": "function",
  "function": {
    "name": "f",
    "description": "does",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
  },
}
CALLING = {
  "role": "assistant",
  "content": None,
  "reasoning_content": "why",
  "tool_calls": [
    {
      "id": "c1",
      "type": "function",
      "function": {"name": "f", "arguments": '{"a": [1, "é"]}'},
    }
  ],
}


def _read(**fields):
  document = {"model": "m", "messages": [USER], **fields}
  return chat_request.read(json.dumps(document).encode())


def _refused(read, *args, **fields):
  with pytest.raises(ApiError) as caught:
    read(*args, **fields)
  error = caught.value
  assert error.status == 400
  assert "\n" not in error.message
  assert error.document()["error"]["type"] == "invalid_request_error"
  return error.param, error.message


def test_read_gives_defaults_and_both_names_of_the_limit():
  request = _read()
  assert (request.stops, request.limit, request.is_tools_shown) == (
    [], None, False,
  )  # fmt: skip
  assert _read(max_tokens=3).limit == 3
  assert _read(max_completion_tokens=4, max_tokens=3).limit == 4
  assert _read(stop="a").stops == ["a"]
  assert _read(temperature=1, seed=-(10**30)).seed == -(10**30)
  assert _read(tools=[TOOL]).is_tools_shown
  assert not _read(tools=[TOOL], tool_choice="none").is_tools_shown
  # Said, but of no effect.
  _read(logprobs=False, frequency_penalty=0, user="u", logit_bias={})


@pytest.mark.parametrize(
  ("param", "fields"),
  [
    ("messages", {"messages": []}),
    ("messages", {"messages": "x"}),
    ("messages.0", {"messages": [{"role": "robot", "content": "x"}]}),
    ("messages.0", {"messages": [7]}),
    ("messages.0.content", {"messages": [{"role": "user"}]}),
    ("messages.0.content", {"messages": [{"role": "user", "content": 7}]}),
    (
      "messages.0.content",
      {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    ),
    ("temperature", {"temperature": "1"}),
    ("temperature", {"temperature": 2.1}),
    ("temperature", {"temperature": -0.1}),
    ("max_tokens", {"max_tokens": True}),
    ("max_tokens", {"max_tokens": 0}),
    ("n", {"n": 0}),
    ("stop", {"stop": [""]}),
    ("stop", {"stop": ["a", "b", "c", "d", "e"]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": TOOL}),
    ("tools", {"tools": [TOOL, TOOL]}),
    ("tools.0.type", {"tools": [{**TOOL, "type": "code"}]}),
    ("logprobs", {"logprobs": True}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("temprature", {"temprature": 1}),
  ],
)
def test_read_refuses_and_names_the_field(param, fields):
  assert _refused(_read, **fields)[0] == param


_DEEP = functools.reduce(lambda inner, _: {"a": inner}, range(80), 1)


@pytest.mark.parametrize(
  "body",
  [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000,
    b'{"a":' * 150 + b"1" + b"}" * 150, json.dumps(_DEEP).encode(),
    b'{"model": "m", "messages": [], "temperature": NaN}',
    b'{"model": "m", "seed": ' + b"9" * 6000 + b"}",
    b'{"model": "\xff", "messages": []}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
  ],
)  # fmt: skip
def test_read_refuses_hostile_bodies(body):
  param, message = _refused(chat_request.read, body)
  assert param is None
  assert len(message) < 200


@pytest.mark.parametrize(
  "fields",
  [
    {"messages": [1] * 1000},
    {"messages": [{"role": "user", "content": [1] * 1000}]},
    {"tools": [1] * 1000},
    {"stop": [1] * 1000},
  ],
)
def test_of_many_mistakes_the_first_is_told(fields):
  with pytest.raises(ApiError) as caught:
    _read(**fields)
  assert caught.value.param.split(".")[0] == next(iter(fields))
  # A million errors would take seconds; a union has one of each kind.
  assert caught.value.__cause__.error_count() <= 2


def test_refusal_does_not_repeat_what_was_sent():
  _, message = _refused(_read, temperature="a secret")
  assert "secret" not in message


def test_example_is_the_record_that_training_rows_have():
  example = history.example(
    _read(
      messages=[
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "h"}] * 2},
        {**CALLING, "refusal": None, "annotations": []},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
      ],
      tools=[TOOL],
    )
  )
  assert example.messages == (
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hh"},
    {
      "role": "assistant",
      "content": "",
      "think": "why",
      "calls": (types.ToolCall("f", {"a": [1, "é"]}),),
    },
    {"role": "tool", "content": "42", "name": "f"},
  )
  assert example.tools == (TOOL["function"],)
  assert example.gold == types.Gold()


def test_example_without_tools_shows_none_and_fills_short_documents():
  short = {"type": "function", "function": {"name": "g"}}
  request = _read(tools=[short])
  assert history.example(request).tools == (
    {
      "name": "g",
      "description": "",
      "parameters": {"type": "object", "properties": {}},
    },
  )
  assert history.example(_read(tools=[short], tool_choice="none")).tools == ()


@pytest.mark.parametrize(
  ("param", "messages"),
  [
    ("messages.1", [USER, {"role": "system", "content": "x"}]),
    (
      "messages.1.tool_call_id",
      [USER, {"role": "tool", "content": "x", "tool_call_id": "c1"}],
    ),
    *(
      (
        "messages.1.tool_calls.0.function.arguments",
        [
          USER,
          {
            "role": "assistant",
            "tool_calls": [
              {
                "id": "c1",
                "type": "function",
                "function": {"name": "f", "arguments": text},
              }
            ],
          },
        ],
      )
      for text in ("[1]", "{", "", '{"a":' * 90 + "1" + "}" * 90)
    ),
  ],
)
def test_example_refuses_messages_that_do_not_fit(param, messages):
  assert _refused(history.example, _read(messages=messages))[0] == param
