"""Tokenizers of folders; those of GGUF files are in test_gguf.py."""

import shutil

import pytest

from toolrl_jax.model import tokenizer


@pytest.mark.quick
def test_load_takes_the_file_as_it_is(tokenizer_dir, tmp_path):
  # Beside a Qwen2 config `transformers` would put Qwen's pre-tokenizer in.
  shutil.copytree(tokenizer_dir, tmp_path / "model")
  (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
  loaded = tokenizer.load(tmp_path / "model")
  ids = loaded("the weather 12<|im_end|>")["input_ids"]
  assert loaded.convert_ids_to_tokens(ids) == (
    ["the", "Ġweather", "Ġ12", "<|im_end|>"]
  )
  assert loaded.decode(ids) == "the weather 12<|im_end|>"
  assert loaded.is_fast
  assert "<|im_start|>" in loaded.chat_template


def test_load_names_the_fault(tokenizer_dir, tmp_path):
  with pytest.raises(ValueError, match="no checkpoint at"):
    tokenizer.load(tmp_path / "absent")
  with pytest.raises(ValueError, match="holds no tokenizer.json"):
    tokenizer.load(tmp_path)
  shutil.copytree(tokenizer_dir, tmp_path / "model")
  (tmp_path / "model" / "tokenizer.json").write_text("{")
  with pytest.raises(ValueError, match="does not load") as caught:
    tokenizer.load(tmp_path / "model")
  assert "\n" not in str(caught.value)


def test_copy_names_the_folder_without_files(tmp_path):
  (tmp_path / "out").mkdir()
  with pytest.raises(ValueError, match="holds no tokenizer.json"):
    tokenizer.copy(tmp_path, tmp_path / "out")


def test_texts_leaves_the_stop_token_and_the_padding_out(make_rollouts):
  text = tokenizer.load("bundled:tiny")
  call = "<tool_call>\n{}\n</tool_call>"
  end = text.eos_token_id
  words = [text(one)["input_ids"] for one in ("a b", call)]
  rollouts = make_rollouts([[*words[0], end], words[1]])
  assert tokenizer.texts(rollouts, text, [end]) == [["a b", call]]
