"""A byte-level tokenizer with a ChatML template, made without any file."""

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# The outward form of Qwen's template, in our own words. Recorded thinking is
# shown after the last user turn only, Qwen3's rule.
CHAT_TEMPLATE = r"""
{%- set state = namespace(last_user=-1, is_tool=false) -%}
{%- for message in messages -%}
{%- if message.role == "user" -%}{%- set state.last_user = loop.index0 -%}
{%- endif -%}{%- endfor -%}
{%- set has_system = messages[0].role == "system" -%}
{%- if tools or has_system -%}
{{- "<|im_start|>system\n" -}}
{%- if has_system -%}{{- messages[0].content -}}{%- endif -%}
{%- if tools -%}
{{- "\n\n# Tools\n<tools>" -}}
{%- for tool in tools -%}{{- "\n" + (tool | tojson) -}}{%- endfor -%}
{{- "\n</tools>" -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == "tool" -%}
{%- if not state.is_tool -%}{{- "<|im_start|>user" -}}{%- endif -%}
{{- "\n<tool_response>\n" + message.content + "\n</tool_response>" -}}
{%- set state.is_tool = true -%}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" -%}
{{- "<|im_end|>\n" -}}{%- set state.is_tool = false -%}
{%- endif -%}
{%- elif message.role == "user" -%}
{{- "<|im_start|>user\n" + message.content + "<|im_end|>\n" -}}
{%- elif message.role == "assistant" -%}
{{- "<|im_start|>assistant" -}}
{%- if message.reasoning_content and loop.index0 > state.last_user -%}
{{- "\n<think> " + message.reasoning_content + " </think>" -}}
{%- endif -%}
{%- if message.content -%}{{- "\n" + message.content -}}{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- (call.function.arguments | tojson) + "}\n</tool_call>" -}}
{%- endfor -%}
{{- "<|im_end|>\n" -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""


@pytest.fixture(scope="session")
def chat_tokenizer() -> transformers.PreTrainedTokenizerFast:
  """One token a byte, three special tokens, `<tool_call>` not special."""
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  vocab = {text: number for number, text in enumerate(alphabet)}
  backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens(list(SPECIALS))
  backend.add_tokens(["<tool_call>", "</tool_call>"])
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=backend,
    eos_token="<|im_end|>",
    pad_token="<|endoftext|>",
  )
  tokenizer.chat_template = CHAT_TEMPLATE.strip()
  return tokenizer
