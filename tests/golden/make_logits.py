"""Makes the golden logits with Hugging Face `transformers` and torch.

Runs in an environment of its own, since the package never depends on torch:

    python -m venv ENV
    ENV/bin/pip install torch==2.13.0 transformers==5.24.0 safetensors numpy
    ENV/bin/python tests/golden/make_logits.py make tests/golden/logits

`make OUT` writes one random tiny checkpoint a case with its logits. `run
CHECKPOINT IDS OUT` writes the logits of a checkpoint for the int sequences in
the JSON file IDS; the `hf_env` test calls it on an export.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
import transformers

SHAPE = {
  "vocab_size": 112,
  "hidden_size": 32,
  "intermediate_size": 48,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "max_position_embeddings": 512,
  "bos_token_id": None,
  "eos_token_id": 2,
}

# The sequences run past the original context, so the scaling counts.
LLAMA = SHAPE | {
  "rms_norm_eps": 1e-5,
  "rope_parameters": {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
  },
}
QWEN = SHAPE | {
  "rms_norm_eps": 1e-6,
  "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}

CASES = {
  "qwen2_tied": (transformers.Qwen2Config, QWEN, True),
  "qwen2_untied": (transformers.Qwen2Config, QWEN, False),
  # Heads wider than the model, as in the released Qwen3.
  "qwen3_tied": (transformers.Qwen3Config, QWEN | {"head_dim": 16}, True),
  "llama_tied": (transformers.LlamaConfig, LLAMA, True),
  "llama_untied": (transformers.LlamaConfig, LLAMA, False),
}

LENGTHS = (80, 24)


def logits(model, ids):
  """Returns float32 logits [tokens, vocabulary] of one sequence."""
  with torch.no_grad():
    return model(torch.tensor([ids])).logits[0].float().numpy()


def randomise(model, generator):
  """Draws every tensor wide enough that each part of the model matters."""
  for name, tensor in model.named_parameters():
    noise = torch.randn(tensor.shape, generator=generator)
    if name.endswith("norm.weight"):
      tensor.data = 1.0 + 0.2 * noise
    elif name.endswith("bias"):
      tensor.data = 0.3 * noise
    else:
      tensor.data = noise * tensor.shape[-1] ** -0.5


def make(out):
  """Writes every case to its folder under `out`."""
  for index, (name, (kind, fields, is_tied)) in enumerate(CASES.items()):
    generator = torch.Generator().manual_seed(index)
    config = kind(**fields, tie_word_embeddings=is_tied)
    config.dtype = torch.float32
    model = transformers.AutoModelForCausalLM.from_config(
      config, attn_implementation="eager"
    ).eval()
    randomise(model, generator)
    model.tie_weights()
    model.save_pretrained(out / name)
    rows = {}
    for length in LENGTHS:
      ids = torch.randint(112, (length,), generator=generator).tolist()
      rows[f"ids_{length}"] = np.array(ids, np.int32)
      rows[f"logits_{length}"] = logits(model, ids)
    np.savez_compressed(out / name / "logits.npz", **rows)


def run(checkpoint, ids_file, out):
  """Writes the logits of a checkpoint for given sequences."""
  model = transformers.AutoModelForCausalLM.from_pretrained(
    checkpoint, dtype=torch.float32, attn_implementation="eager"
  ).eval()
  sequences = json.loads(pathlib.Path(ids_file).read_text())
  np.savez(out, *[logits(model, ids) for ids in sequences])


def main():
  """Parses the command line."""
  parser = argparse.ArgumentParser(description=__doc__)
  commands = parser.add_subparsers(dest="command", required=True)
  commands.add_parser("make").add_argument("out", type=pathlib.Path)
  one = commands.add_parser("run")
  for name in ("checkpoint", "ids", "out"):
    one.add_argument(name)
  arguments = parser.parse_args()
  if arguments.command == "make":
    make(arguments.out)
  else:
    run(arguments.checkpoint, arguments.ids, arguments.out)


if __name__ == "__main__":
  main()
