"""Small tokenizers and models that the tests of this stage share."""

import pathlib

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

CHAT_TEMPLATE = (
  "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
  "{{ message['content'] }}<|im_end|>\n{% endfor %}"
  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory) -> pathlib.Path:
  """A folder with a byte-level BPE of 300 tokens, as a checkpoint has it."""
  folder = tmp_path_factory.mktemp("tokenizer")
  built = tokenizers.Tokenizer(models.BPE())
  built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  built.decoder = decoders.ByteLevel()
  text = "the weather in the town, the other weather: 12 345 there"
  built.train_from_iterator(
    [text] * 3,
    trainers.BpeTrainer(
      vocab_size=300,
      special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
      show_progress=False,
    ),
  )
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=built,
    eos_token="<|im_end|>",
    pad_token="<|endoftext|>",
  )
  tokenizer.chat_template = CHAT_TEMPLATE
  tokenizer.save_pretrained(folder)
  return folder


def assert_same(found, expected):
  """Asserts that two parameter trees are bit-equal."""
  assert found.keys() == expected.keys()
  for key, value in expected.items():
    if isinstance(value, dict):
      assert_same(found[key], value)
    else:
      assert found[key].dtype == value.dtype
      np.testing.assert_array_equal(
        np.asarray(found[key]), np.asarray(value), err_msg=key
      )


@pytest.fixture(scope="session")
def same_params():
  """The check that two parameter trees are bit-equal."""
  return assert_same
