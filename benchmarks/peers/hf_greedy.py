"""Greedy answers of a checkpoint with Hugging Face transformers on the CPU.

In the environment of the peer "trl" (see peer_process.py):

    python benchmarks/peers/hf_greedy.py REQUEST.json REPLY.json

The request holds `model` (a folder), `prompts` (texts, special tokens as they
are) and `max_tokens`; the reply is a list of `text` and `num_tokens`. float32,
one prompt at a time, no penalty, so that nothing but the model decides.
"""

import json
import pathlib
import sys

import torch
import transformers


def main():
  """Reads the two paths of the command line."""
  asked, replied = map(pathlib.Path, sys.argv[1:])
  request = json.loads(asked.read_text())
  tokenizer = transformers.AutoTokenizer.from_pretrained(request["model"])
  model = transformers.AutoModelForCausalLM.from_pretrained(
    request["model"], dtype=torch.float32
  ).eval()
  answers = []
  for number, prompt in enumerate(request["prompts"], start=1):
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
      whole = model.generate(
        **ids,
        do_sample=False,
        repetition_penalty=1.0,
        max_new_tokens=request["max_tokens"],
      )
    said = whole[0, ids["input_ids"].shape[1] :].tolist()
    text = tokenizer.decode(said, skip_special_tokens=True)
    answers.append({"text": text, "num_tokens": len(said)})
    print(f"{number} of {len(request['prompts'])}", file=sys.stderr, flush=True)
  replied.write_text(json.dumps(answers))


if __name__ == "__main__":
  main()
