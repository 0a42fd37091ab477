"""Hashes of the switches, and the system texts."""

import pytest

from toolrl_jax.evaluation import protocol

pytestmark = pytest.mark.quick

_PLAIN = protocol.Protocol(
  template="native",
  completion="native",
  thinking="official",
  system="",
  temperature=0.001,
  top_p=1.0,
  top_k=0,
  max_new_tokens=512,
  max_prompt_tokens=2048,
)
_OTHERS = {
  "template": "context",
  "completion": "toolrl",
  "thinking": "keep",
  "system": "x",
  "temperature": 0.0,
  "top_p": 0.9,
  "top_k": 20,
  "max_new_tokens": 511,
  "max_prompt_tokens": 2047,
  "tool_docs": "raw",
}


def test_every_switch_changes_the_hash():
  assert set(_OTHERS) == set(_PLAIN._fields)
  hashes = {_PLAIN.hash} | {
    _PLAIN._replace(**{name: value}).hash for name, value in _OTHERS.items()
  }
  assert len(hashes) == 1 + len(_OTHERS)
  assert _PLAIN.hash == _PLAIN._replace(system="").hash


def test_record_holds_every_switch_and_the_hashes():
  record = _PLAIN._replace(system="be brief").record()
  assert record["temperature"] == 0.001 and record["system"] == "be brief"
  assert record["hash"] != _PLAIN.hash
  assert len(record["system_hash"]) == 16


def test_stronger_system_has_the_four_groups_of_rules():
  text = protocol.system_text("stronger")
  for group in ("Finishing:", "Parameters:", "Splitting a task:", "Errors:"):
    assert f"\n{group}\n" in text
  # Whoever changes the text changes every score under it.
  hash_ = _PLAIN._replace(system=text).record()["system_hash"]
  assert hash_ == "b79f5a19ef7548b0"


def test_system_text_reads_a_file_and_refuses_none(tmp_path):
  assert protocol.system_text("default") == ""
  (tmp_path / "mine.txt").write_text(" Be brief.\n")
  assert protocol.system_text(str(tmp_path / "mine.txt")) == "Be brief."
  with pytest.raises(ValueError, match='must be "default", "stronger" or a'):
    protocol.system_text(str(tmp_path / "no.txt"))
  (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
  with pytest.raises(ValueError, match="text file"):
    protocol.system_text(str(tmp_path / "bytes.txt"))
