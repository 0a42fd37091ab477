import random

import pytest

from toolrl_jax.model import text_stream, tokenizer

pytestmark = pytest.mark.quick

END = 2


@pytest.fixture(scope="module")
def backend():
  return tokenizer.load("bundled:tiny").backend_tokenizer


def _ids(backend, text):
  return backend.encode(text, add_special_tokens=False).ids


def _feed(stream, ids, sizes=(1,)):
  """Feeds in chunks of the sizes, over and over; returns all pieces."""
  pieces, position, turn = [], 0, 0
  while position < len(ids):
    size = sizes[turn % len(sizes)]
    turn += 1
    chunk = ids[position : position + size]
    position += size
    pieces.append(stream.feed(chunk, is_end=position >= len(ids)))
  return pieces


def test_feed_releases_a_character_when_its_last_byte_came(backend):
  # Byte-level tokens: the vocabulary has no token for these characters.
  ids = _ids(backend, "aé€😀")
  assert len(ids) == 1 + 2 + 3 + 4
  stream = text_stream.TextStream(backend, end_ids=[END])
  pieces = [stream.feed([token]) for token in ids]
  assert pieces == ["a", "", "é", "", "", "€", "", "", "", "😀"]
  assert (stream.num_tokens, stream.text) == (10, "aé€😀")


def test_feed_gives_what_decoding_all_gives_for_any_tokens(backend):
  rng = random.Random(0)
  for trial in range(200):
    ids = [
      rng.choice(
        (rng.randrange(3, backend.get_vocab_size()), 3 + rng.randrange(256))
      )
      for _ in range(rng.randrange(1, 40))
    ]
    whole = backend.decode(ids, skip_special_tokens=False)
    stream = text_stream.TextStream(backend, end_ids=[END])
    pieces = _feed(stream, ids, sizes=(1, 3, 16)[trial % 3 :])
    assert "".join(pieces) == stream.text == whole
    assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])


def test_end_token_is_counted_and_has_no_text(backend):
  stream = text_stream.TextStream(backend, end_ids=[END])
  ids = [*_ids(backend, "ab"), END]
  assert stream.feed(ids, is_end=True) == "ab"
  assert stream.num_tokens == len(ids)
  assert not stream.is_stopped


def test_half_a_character_at_the_end_is_one_replacement(backend):
  ids = _ids(backend, "x😀")[:-1]
  stream = text_stream.TextStream(backend, end_ids=[END])
  assert stream.feed(ids) == "x"
  assert stream.feed([], is_end=True) == "\ufffd"


@pytest.mark.parametrize("size", [1, 2, 100])
def test_stop_text_ends_the_text_before_it_whatever_the_chunks(backend, size):
  ids = _ids(backend, "one two three four")
  count = len(_ids(backend, "one two three"))
  stream = text_stream.TextStream(backend, end_ids=[END], stops=["three", "ur"])
  pieces = _feed(stream, ids, sizes=(size,))
  assert "".join(pieces) == "one two "
  assert stream.is_stopped
  # The tokens after the one that completes the stop text are not counted.
  spelled = [
    number
    for number in range(len(ids) + 1)
    if "three" in backend.decode(ids[:number])
  ]
  assert stream.num_tokens == spelled[0] <= count


def test_what_may_begin_a_stop_text_is_held_and_released_when_it_does_not(
  backend,
):
  stream = text_stream.TextStream(backend, end_ids=[END], stops=["abc"])
  assert stream.feed(_ids(backend, "x")) == "x"
  for letter, told in (("a", ""), ("b", ""), ("d", "abd"), ("a", "")):
    assert stream.feed(_ids(backend, letter)) == told
  assert stream.feed([], is_end=True) == "a"
  assert not stream.is_stopped


def test_held_length_is_the_longest_ending_that_begins_a_wanted_text():
  assert text_stream.held_length("say <tool", ("<tool_call>",)) == 5
  assert text_stream.held_length("aab", ("abc", "aabd")) == 3
  assert text_stream.held_length("", ("abc",)) == 0
  assert text_stream.held_length("abc", ()) == 0
