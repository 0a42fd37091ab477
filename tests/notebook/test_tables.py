"""Tests of toolrl_jax/notebook/tables.py."""

import html.parser

import pytest

from toolrl_jax.notebook import tables


def test_table_shows_model_text_as_text():
  hostile = '</td></table><script>alert("x")</script>\x07\ud800\ttab\nline'
  shown = tables.table(("a<b",), [(hostile,)], caption="<i>")._repr_html_()

  class Tags(html.parser.HTMLParser):
    def __init__(self):
      super().__init__()
      self.seen, self.text = [], ""

    def handle_starttag(self, tag, attributes):
      self.seen.append(tag)

    def handle_data(self, data):
      self.text += data

  tags = Tags()
  tags.feed(shown)
  assert tags.seen == [
    "div", "table", "caption", "thead", "tr", "th", "tbody", "tr", "td",
  ]  # fmt: skip
  assert tags.text == (
    '<i>a<b</td></table><script>alert("x")</script>\\x07\\ud800\ttab\nline'
  )
  shown.encode()


def test_table_writes_cells_for_readers():
  shown = tables.table(("a", "b"), [(True, 1.23456), (None, -0.0)], "caption")
  assert repr(shown) == "caption\na | b\nyes | 1.235\n | 0"


def test_table_refuses_a_short_row():
  with pytest.raises(ValueError, match="2 cells, got 1"):
    tables.table(("a", "b"), [("x",)])
