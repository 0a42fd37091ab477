"""The official client against the real server with the tiny model."""

import concurrent.futures
import json
import time
import urllib.error
import urllib.request

import openai
import pytest

from toolrl_jax.data import prompt


def _text(message):
  """Returns a message's thought, content and calls; ids differ every time."""
  calls = [
    (call.function.name, json.loads(call.function.arguments))
    for call in message.tool_calls or ()
  ]
  thought = getattr(message, "reasoning_content", None)
  return thought, message.content, calls


def _streamed(client, **asked):
  """Adds the deltas of a stream up, choice by choice."""
  options = {"stream": True, "stream_options": {"include_usage": True}}
  thoughts, contents, calls, finish = {}, {}, {}, {}
  usage, num_pieces = None, 0
  for chunk in client.chat.completions.create(**asked, **options):
    if chunk.usage is not None:
      assert usage is None and not chunk.choices
      usage = chunk.usage
    for choice in chunk.choices:
      index, delta = choice.index, choice.delta
      assert index not in finish, "a delta after the end"
      num_pieces += bool(delta.content)
      contents[index] = contents.get(index, "") + (delta.content or "")
      thought = getattr(delta, "reasoning_content", None) or ""
      thoughts[index] = thoughts.get(index, "") + thought
      for call in delta.tool_calls or ():
        called = calls.setdefault(index, [])
        assert call.index == len(called) and call.id.startswith("call_")
        name, arguments = call.function.name, call.function.arguments
        called.append((name, json.loads(arguments)))
      if choice.finish_reason:
        finish[index] = choice.finish_reason
  texts = [
    (thoughts[index] or None, contents[index] or None, calls.get(index, []))
    for index in sorted(contents)
  ]
  return texts, finish, usage, num_pieces


def _idle(server, secs=60):
  end = time.monotonic() + secs
  while server.health()["open"]:
    assert time.monotonic() < end, "rows are still taken"
    time.sleep(0.05)


def test_models_lists_the_one_that_is_served(client, server):
  (model,) = client.models.list().data
  assert (
    (model.id, model.object) == (server.model, "model") == ("tiny", "model")
  )
  assert client.models.retrieve("tiny").id == "tiny"


def test_a_tool_call_comes_back_for_a_generated_prompt(client, rows, asking):
  one = [row for row in rows if len(row.gold.calls) == 1][:6]
  num_right = 0
  for row in one:
    (choice,) = client.chat.completions.create(**asking(row)).choices
    _, content, calls = _text(choice.message)
    assert choice.finish_reason == "tool_calls" and content is None
    gold = [(call.name, dict(call.arguments)) for call in row.gold.calls]
    num_right += calls == gold
  # Greedy, the bundled model gets three of five such rows right.
  assert num_right >= 3


def test_a_conversation_with_a_tools_answer_goes_on(client, rows, asking):
  row = next(row for row in rows if len(row.gold.calls) == 1)
  asked = asking(row, max_tokens=64)
  first = client.chat.completions.create(**asked).choices[0].message
  asked["messages"] += [
    first.model_dump(exclude_none=True),
    {
      "role": "tool",
      "tool_call_id": first.tool_calls[0].id,
      "content": "done",
    },
  ]
  answer = client.chat.completions.create(**asked)
  assert answer.usage.completion_tokens <= 64
  assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_streaming_gives_what_not_streaming_gives(
  client, rows, asking, endless
):
  cases = [asking(row, seed=2, temperature=1) for row in rows[:4]]
  # Hot samples of random bytes: cut characters, odd tags.
  cases += [endless(max_tokens=50, n=8)]
  cases += [endless(seed=3, max_tokens=50, stop=["a", "zq"], n=8)]
  for asked in cases:
    whole = client.chat.completions.create(**asked)
    texts, finish, usage, _ = _streamed(client, **asked)
    assert texts == [_text(choice.message) for choice in whole.choices]
    assert usage.model_dump() == whole.usage.model_dump()
    for choice in whole.choices:
      assert finish[choice.index] == choice.finish_reason


def test_content_comes_in_pieces(client, rows, asking):
  row = next(row for row in rows if row.gold.response)
  texts, finish, _, num_pieces = _streamed(client, **asking(row))
  assert texts == [(texts[0][0], row.gold.response, [])]
  assert finish == {0: "stop"}
  assert num_pieces >= 2


def test_a_seed_gives_the_same_answer_alone_and_beside_eight_others(
  server, endless
):
  ask = lambda client, **options: [
    _text(choice.message)
    for choice in client.chat.completions.create(
      **endless(max_tokens=40, **options)
    ).choices
  ]
  client = server.client()
  alone = ask(client, seed=11)
  assert ask(client, seed=11) == alone
  assert ask(client, seed=12) != alone
  assert ask(client, seed=None) != ask(client, seed=None)
  with concurrent.futures.ThreadPoolExecutor(9) as pool:
    others = [
      pool.submit(ask, client, seed=20 + n, temperature=1 + n / 8)
      for n in range(8)
    ]
    assert pool.submit(ask, client, seed=11).result() == alone
    assert len({str(other.result()) for other in others}) == 8
  _idle(server)


def test_n_gives_different_answers_of_which_the_first_is_that_of_n_1(
  client, endless
):
  asked = endless(max_tokens=40)
  three = client.chat.completions.create(**asked, n=3)
  assert [choice.index for choice in three.choices] == [0, 1, 2]
  texts = [str(_text(choice.message)) for choice in three.choices]
  assert len(set(texts)) == 3
  one = client.chat.completions.create(**asked)
  assert str(_text(one.choices[0].message)) == texts[0]
  assert three.usage.prompt_tokens == one.usage.prompt_tokens
  assert one.usage.completion_tokens == 40
  assert 40 < three.usage.completion_tokens <= 3 * 40


def test_stop_ends_the_answer_before_the_text(client, rows, asking):
  row = next(row for row in rows if row.gold.response)
  whole = client.chat.completions.create(**asking(row))
  assert whole.choices[0].message.content == "No tool fits."
  cut = client.chat.completions.create(**asking(row, stop=[" fits", "never"]))
  (choice,) = cut.choices
  assert (choice.message.content, choice.finish_reason) == ("No tool", "stop")
  assert cut.usage.completion_tokens < whole.usage.completion_tokens


def test_max_tokens_and_its_other_name_end_the_answer(client, endless):
  for name in ("max_tokens", "max_completion_tokens"):
    answer = client.chat.completions.create(**endless(), **{name: 7})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 7


def test_usage_counts_the_tokenizers_tokens(
  client, rows, asking, tiny_tokenizer
):
  for row in rows[:4]:
    usage = client.chat.completions.create(**asking(row)).usage
    prompt_ids = prompt.encode(row, tiny_tokenizer, template="native")
    assert usage.prompt_tokens == len(prompt_ids)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
  refused = next(row for row in rows if row.gold.response)
  answer = client.chat.completions.create(**asking(refused))
  thought, content, _ = _text(answer.choices[0].message)
  # What the model was taught to write, and the end token.
  text = f"<think>{thought}</think>\n<response>{content}</response>"
  ids = tiny_tokenizer(text, add_special_tokens=False)["input_ids"]
  assert answer.usage.completion_tokens == len(ids) + 1


def test_tool_choice_none_shows_no_tools(client, rows, asking, tiny_tokenizer):
  row = rows[0]
  answer = client.chat.completions.create(
    **asking(row, tool_choice="none", max_tokens=30)
  )
  bare = prompt.encode(
    row._replace(tools=()), tiny_tokenizer, template="native"
  )
  assert answer.usage.prompt_tokens == len(bare)
  assert not answer.choices[0].message.tool_calls


@pytest.mark.parametrize(
  ("status", "code", "options"),
  [
    (400, None, {"messages": []}),
    (400, None, {"messages": [{"role": "robot", "content": "x"}]}),
    (400, None, {"temperature": "warm"}),
    (400, None, {"max_tokens": 1025}),
    (400, None, {"n": 9}),
    (400, "unsupported_value", {"top_p": 0.5}),
    (400, "unsupported_value", {"tool_choice": "required"}),
    (400, "unsupported_parameter", {"logprobs": True}),
    (400, "unknown_parameter", {"extra_body": {"mystery": 1}}),
    (
      400,
      "context_length_exceeded",
      {"messages": [{"role": "user", "content": "word " * 600}]},
    ),
    (
      400,
      None,
      {
        "tools": [
          {
            "type": "function",
            "function": {"name": "f", "parameters": {"properties": 5}},
          }
        ]
      },
    ),
    (404, "model_not_found", {"model": "another"}),
  ],
)
def test_mistakes_are_4xx_with_a_reason(client, endless, status, code, options):
  with pytest.raises(openai.APIStatusError) as caught:
    client.chat.completions.create(**endless(**options))
  error = caught.value
  assert (error.status_code, error.code) == (status, code)
  assert set(error.body) == {"message", "type", "param", "code"}
  assert error.body["message"]


def test_top_p_of_the_server_is_taken(client, endless):
  client.chat.completions.create(**endless(top_p=1, max_tokens=1))


def _post(server, body, *, path="/chat/completions", method="POST"):
  request = urllib.request.Request(server.url + path, body, method=method)
  try:
    with urllib.request.urlopen(request, timeout=120) as response:
      return response.status, json.load(response)
  except urllib.error.HTTPError as error:
    return error.code, json.load(error)


@pytest.mark.parametrize(
  ("status", "body"),
  [
    (400, b"{"), (400, b"[" * 100_000), (400, b"\xff\xfe"), (400, b""),
    (400, b'{"model": "tiny", "temperature": NaN, "messages": []}'),
    (400, b'{"model": "tiny", "seed": ' + b"9" * 6000 + b"}"),
    (
      400,
      b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
    ),
    (413, b'{"model": "' + b"x" * 10_000_000 + b'"}'),
  ],
)  # fmt: skip
def test_hostile_bodies_are_refused_and_the_server_goes_on(
  server, status, body
):
  found, document = _post(server, body)
  assert found == status
  assert document["error"]["type"] == "invalid_request_error"
  assert server.health()["status"] == "ok"


def test_wrong_paths_and_methods_have_the_same_shape(server):
  for status, path, method in (
    (405, "/chat/completions", "GET"), (405, "/models", "POST"),
    (404, "/models/another", "GET"), (404, "/nothing", "GET"),
  ):  # fmt: skip
    found, document = _post(server, None, path=path, method=method)
    assert (found, set(document)) == (status, {"error"})


def test_more_choices_than_rows_is_400_as_it_never_can_be_served(
  client, endless
):
  for n in (9, 11, 10**18):
    with pytest.raises(openai.BadRequestError, match=r"in \[1, 8\]"):
      client.chat.completions.create(**endless(n=n))


def test_a_prompt_that_is_far_too_long_is_not_encoded(client, server):
  # Encoding it takes seconds, in which other prompts would wait.
  start = time.monotonic()
  with pytest.raises(openai.BadRequestError, match="characters") as caught:
    client.chat.completions.create(
      model=server.model,
      messages=[{"role": "user", "content": "a" * 2_000_000}],
    )
  assert caught.value.code == "context_length_exceeded"
  assert time.monotonic() - start < 2


def test_a_tool_without_types_is_shown(client, server):
  properties = {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
  function = {
    "name": "f",
    "parameters": {"type": "object", "properties": properties},
  }
  answer = client.chat.completions.create(
    model=server.model,
    messages=[{"role": "user", "content": "hi"}],
    tools=[{"type": "function", "function": function}],
    max_tokens=1,
  )
  assert answer.usage.completion_tokens == 1


def test_more_than_rows_and_places_is_429_with_retry_after(
  client, server, endless
):
  _idle(server)
  running = client.chat.completions.create(**endless(n=8), stream=True)
  waiting = client.chat.completions.create(**endless(n=2), stream=True)
  next(running), next(waiting)
  with pytest.raises(openai.RateLimitError) as caught:
    client.chat.completions.create(**endless())
  assert caught.value.response.headers["retry-after"] == "1"
  assert "try again later" in caught.value.message
  running.close(), waiting.close()
  _idle(server)
  client.chat.completions.create(**endless(max_tokens=1))


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_frees_its_row(server, endless, is_streamed):
  _idle(server)
  num_lines = len(server.lines)
  if is_streamed:
    stream = server.client().chat.completions.create(**endless(), stream=True)
    for _, _ in zip(range(4), stream):
      pass
    stream.close()
  else:
    impatient = server.client().with_options(timeout=1.5)
    with pytest.raises(openai.APITimeoutError):
      impatient.chat.completions.create(**endless())
  _idle(server)
  server.wait_for("POST /v1/chat/completions 499 ")
  (line,) = [line for line in server.lines[num_lines:] if " 499 " in line]
  num_tokens = int(line.split("+")[1].split()[0])
  assert num_tokens < 1024


def test_the_log_has_a_line_a_request_and_no_text(server, endless):
  secret = "a most private sentence"
  server.client().chat.completions.create(
    **endless(
      max_tokens=1, seed=77, messages=[{"role": "user", "content": secret}]
    )
  )
  _post(server, None, path="/a%0Aforged%20line", method="GET")
  server.wait_for(r"POST /v1/chat/completions 200 \d+\+1 tokens \d+\.\d{3} s$")
  server.wait_for(r"GET /v1/a\\nforged line 404 0\+0 tokens")
  assert secret not in "\n".join(server.lines)
