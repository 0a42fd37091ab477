"""Makes the golden greedy tokens of a real model with Hugging Face and torch.

Runs in the environment of make_logits.py on an export of the package:

    toolrl-convert qwen.gguf /tmp/real/hf --dtype=float32
    ENV/bin/python tests/golden/make_greedy.py /tmp/real/hf \
        tests/golden/greedy_qwen2.5-coder-0.5b.json

Writes, for each prompt, its token ids, the 32 tokens that follow and the gap
between the two largest logits at each.
"""

import json
import pathlib
import sys

import torch
import transformers

NUM_TOKENS = 32

PROMPTS = (
  [
    {
      "role": "user",
      "content": "Write a Python function that adds two numbers.",
    }
  ],
  [
    {"role": "system", "content": "You call tools."},
    {"role": "user", "content": "What is the weather in Paris tomorrow?"},
  ],
  [{"role": "user", "content": "Name three prime numbers above 20, in JSON."}],
)


def main():
  """Reads the two paths of the command line."""
  checkpoint, out = sys.argv[1:]
  tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
  model = transformers.AutoModelForCausalLM.from_pretrained(
    checkpoint, dtype=torch.float32
  ).eval()
  rows = []
  for messages in PROMPTS:
    ids = tokenizer.apply_chat_template(
      messages, add_generation_prompt=True, return_dict=False
    )
    prompt_ids, gaps, text = list(ids), [], []
    cache = None
    feed = prompt_ids
    with torch.no_grad():
      for _ in range(NUM_TOKENS):
        answer = model(torch.tensor([feed]), past_key_values=cache)
        cache = answer.past_key_values
        top = answer.logits[0, -1].topk(2)
        gaps.append(round(float(top.values[0] - top.values[1]), 6))
        text.append(int(top.indices[0]))
        feed = text[-1:]
    rows.append(
      {
        "messages": messages,
        "prompt_ids": prompt_ids,
        "completion_ids": text,
        "gaps": gaps,
        "text": tokenizer.decode(text),
      }
    )
  lines = ",\n".join(json.dumps(row) for row in rows)
  pathlib.Path(out).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
  main()
