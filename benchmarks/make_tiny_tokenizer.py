"""Trains the tokenizer of the bundled tiny model on generated texts.

    python benchmarks/make_tiny_tokenizer.py toolrl_jax/assets/tiny

Writes tokenizer.json, tokenizer_config.json (with the chat template) and
generation_config.json. Byte-level BPE with Qwen2's splitting, so any text is
encoded without loss; words of the generated task are one token. Deterministic:
the same code writes the same bytes.
"""

import json
import pathlib
import sys

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from toolrl_jax.data import synthetic

NUM_EXAMPLES = 6000
VOCAB_SIZE = 1024
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# One token each, but text: decoding keeps them.
TAG_TOKENS = (
  "<think>", "</think>", "<tool_call>", "</tool_call>", "<response>",
  "</response>", "<tool_response>", "</tool_response>",
)  # fmt: skip
# Words with the blank before them, single digits, punctuation, line ends.
QWEN_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
  r"|[^\r\n\p{L}\p{N}]?\p{L}+"
  r"|\p{N}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
  r"|\s*[\r\n]+"
  r"|\s+(?!\S)"
  r"|\s+"
)
# ChatML; each tool is one line of JSON, its parameters as name and type.
CHAT_TEMPLATE = """\
{%- macro call_line(call) -%}
{%- set call = call.function if call.function is defined else call -%}
{"name":{{ call.name | tojson }},"parameters":\
{{ call.arguments if call.arguments is string else \
call.arguments | tojson(separators=(",", ":")) }}}
{%- endmacro -%}
{%- set has_system = messages and messages[0].role == "system" -%}
{%- if tools or has_system -%}
<|im_start|>system
{% if has_system %}{{ messages[0].content }}
{% endif -%}
{%- if tools -%}
Tools:
{% for tool in tools -%}
{%- set tool = tool.function if tool.function is defined else tool -%}
{"name":{{ tool.name | tojson }},"parameters":{
{%- for name, schema in (tool.parameters.properties or {}) | items -%}
{{ name | tojson }}:{{ (schema.type if schema.type is defined else schema) | tojson(separators=(",", ":")) }}
{{- "," if not loop.last }}
{%- endfor -%}
},"description":{{ tool.description | tojson }}}
{% endfor -%}
{%- endif -%}
<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == "assistant" -%}
<|im_start|>assistant
{% if message.reasoning_content -%}
<think>{{ message.reasoning_content }}</think>
{% endif -%}
{%- if message.tool_calls -%}
<tool_call>
{% for call in message.tool_calls -%}
{{ call_line(call) }}
{% endfor -%}
</tool_call>
{%- if message.content %}
{% endif -%}
{%- endif -%}
{{ message.content or "" }}<|im_end|>
{% elif message.role == "tool" -%}
<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% elif message.role == "user" -%}
<|im_start|>user
{{ message.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def texts(num: int) -> list[str]:
  """Returns the texts of `num` generated examples, controls left out."""
  examples = synthetic.generate(num, split="train", seed=0)
  found = []
  for example in examples:
    for tool in example.tools:
      properties = tool["parameters"]["properties"]
      line = {
        "name": tool["name"],
        "parameters": {name: properties[name]["type"] for name in properties},
        "description": tool["description"],
      }
      found.append(json.dumps(line, separators=(",", ":")) + "\n")
    found.append(example.messages[-1]["content"])
    found.append(synthetic.render(example.gold.calls))
  return found + ["system\nTools:\n", "user\n", "assistant\n"] * num


def train(corpus: list[str]) -> str:
  """Trains the BPE and returns tokenizer.json as text."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(QWEN_SPLIT), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=VOCAB_SIZE,
    special_tokens=[*CONTROL_TOKENS, *TAG_TOKENS],
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  # Tags are cut out, as they are tokens already when a text is encoded.
  for tag in TAG_TOKENS:
    corpus = [piece for text in corpus for piece in text.split(tag)]
  tokenizer.train_from_iterator(corpus, trainer)
  document = json.loads(tokenizer.to_str())
  for token in document["added_tokens"]:
    token["special"] = token["content"] in CONTROL_TOKENS
  return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def main() -> None:
  """Writes the tokenizer files to the folder given on the command line."""
  if len(sys.argv) != 2:
    raise SystemExit(f"usage: python {sys.argv[0]} OUT_FOLDER")
  folder = pathlib.Path(sys.argv[1])
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "tokenizer.json").write_text(train(texts(NUM_EXAMPLES)))
  tokenizer_config = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 1024,
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": None,
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
  }
  generation_config = {
    "bos_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": [2, 0],
    "do_sample": True,
    "temperature": 1.0,
  }
  for name, document in (
    ("tokenizer_config.json", tokenizer_config),
    ("generation_config.json", generation_config),
  ):
    text = json.dumps(document, ensure_ascii=False, indent=2)
    (folder / name).write_text(text + "\n")


if __name__ == "__main__":
  main()
