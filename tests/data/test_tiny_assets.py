"""The bundled tokenizer: what it encodes, and that its script re-creates it."""

import importlib.resources
import importlib.util
import pathlib

import numpy as np
import pytest
import transformers

from toolrl_jax.data import prompt, synthetic, synthetic_words

_ASSETS = pathlib.Path(str(importlib.resources.files("toolrl_jax"))) / (
  "assets/tiny"
)
_SCRIPT = pathlib.Path(__file__).parents[2] / (
  "benchmarks/make_tiny_tokenizer.py"
)


@pytest.fixture(scope="module")
def tokenizer():
  return transformers.PreTrainedTokenizerFast.from_pretrained(
    _ASSETS, local_files_only=True
  )


def test_script_recreates_the_bundled_tokenizer_byte_for_byte(
  tmp_path, monkeypatch
):
  spec = importlib.util.spec_from_file_location("make_tiny", _SCRIPT)
  make_tiny = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(make_tiny)
  monkeypatch.setattr("sys.argv", ["make_tiny_tokenizer.py", str(tmp_path)])
  make_tiny.main()
  for name in ("tokenizer.json", "tokenizer_config.json"):
    assert (tmp_path / name).read_bytes() == (_ASSETS / name).read_bytes(), name


def test_tokenizer_controls_and_tags_have_their_places(tokenizer):
  controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
  assert tokenizer.convert_tokens_to_ids(controls) == [0, 1, 2]
  assert tokenizer.pad_token_id == 0
  assert tokenizer.eos_token_id == 2
  ids = tokenizer("<think>x</think><tool_call></tool_call>")["input_ids"]
  assert len(ids) == 5
  # Tags are text: they survive decoding without special tokens.
  text = tokenizer.decode(ids, skip_special_tokens=True)
  assert text == "<think>x</think><tool_call></tool_call>"


@pytest.mark.parametrize(
  "text", ["", "naïve  ünïcode 漢字 🙂\r\n\t\n", '{"a": [1, null]}', "don't 42"]
)
def test_tokenizer_encodes_any_text_without_loss(tokenizer, text):
  ids = tokenizer(text, add_special_tokens=False)["input_ids"]
  assert tokenizer.decode(ids) == text


def test_tokenizer_reads_the_same_through_the_class_of_the_architecture(
  tokenizer,
):
  # Readers of Qwen checkpoints build Qwen's class with its own splitting.
  other = transformers.AutoTokenizer.from_pretrained(
    _ASSETS, local_files_only=True
  )
  for example in synthetic.generate(100, split="eval", seed=2):
    text = prompt.render(example, tokenizer, template="native")
    text += synthetic.render(example.gold.calls)
    assert tokenizer(text)["input_ids"] == other(text)["input_ids"]


def test_tokenizer_spells_every_value_in_one_token(tokenizer):
  for vocabulary in synthetic_words.VOCABULARIES:
    for value in vocabulary:
      text = f'":"{value}","' if isinstance(value, str) else f'":{value},"'
      assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) == 3
      # A digit never takes the blank along.
      num_tokens = 2 if isinstance(value, int) else 1
      ids = tokenizer(f" {value}", add_special_tokens=False)["input_ids"]
      assert len(ids) == num_tokens


def test_chat_template_renders_tools_and_history_by_hand(tokenizer):
  schema = {"type": "object", "properties": {"x": {"type": "string"}}}
  tool = {"name": "f", "description": "does f", "parameters": schema}
  call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
  text = tokenizer.apply_chat_template(
    [
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": "Do it."},
      {"role": "assistant", "content": "", "tool_calls": [call]},
      {"role": "tool", "content": "done"},
    ],
    tools=[{"type": "function", "function": tool}],
    tokenize=False,
    add_generation_prompt=True,
  )
  assert text == (
    "<|im_start|>system\nBe brief.\nTools:\n"
    '{"name":"f","parameters":{"x":"string"},"description":"does f"}\n'
    "<|im_end|>\n<|im_start|>user\nDo it.<|im_end|>\n"
    '<|im_start|>assistant\n<tool_call>\n{"name":"f","parameters":{"x":1}}\n'
    "</tool_call><|im_end|>\n"
    "<|im_start|>user\n<tool_response>done</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n"
  )


def test_chat_template_shows_properties_without_a_type(tokenizer):
  properties = {"x": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "y": {}}
  tool = {
    "name": "f",
    "description": "does f",
    "parameters": {"type": "object", "properties": properties},
  }
  text = tokenizer.apply_chat_template(
    [{"role": "user", "content": "Do it."}], tools=[tool], tokenize=False
  )
  shown = '{"x":{"anyOf":[{"type":"string"},{"type":"null"}]},"y":{}}'
  assert f'"parameters":{shown}' in text


def test_prompts_are_three_to_eight_times_longer_than_answers(tokenizer):
  examples = synthetic.generate(600, split="eval", seed=0)
  prompts = prompt.encode_examples(
    examples, tokenizer, template="native", max_prompt_tokens=160,
    overlong="error",
  ).prompt_ids  # fmt: skip
  answers = [
    tokenizer(synthetic.render(e.gold.calls), add_special_tokens=False)
    for e in examples
  ]
  # The stop token is part of an answer.
  lengths = [len(answer["input_ids"]) + 1 for answer in answers]
  ratio = np.mean([len(ids) for ids in prompts]) / np.mean(lengths)
  assert 3.4 < ratio < 4.2
  assert max(lengths) <= 56
