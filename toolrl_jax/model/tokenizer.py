"""Tokenizers and chat templates, as they come with a checkpoint.

From a checkpoint on disk to a `transformers` tokenizer. Never asks the
network. Knows nothing of prompts or weights.
"""

import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from toolrl_jax import types
from toolrl_jax.model import gguf, source

Tokenizer = transformers.PreTrainedTokenizerBase

# How the released tokenizers cut text before the merges; they differ in the
# run of digits.
_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
  r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPLIT = _SPLIT % ""
_LLAMA3_SPLIT = _SPLIT % "{1,3}"
_NO_LIMIT = int(1e30)
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")


def load(path: str | pathlib.Path) -> Tokenizer:
  """Loads the tokenizer of a checkpoint.

  Args:
    path: A folder with tokenizer files, a .gguf file, or "bundled:tiny".

  Returns:
    The tokenizer, with the checkpoint's chat template.

  Raises:
    ValueError: If the files are missing or damaged.
  """
  found = source.locate(path)
  if found.is_file():
    return from_gguf(gguf.open_file(found))
  # Newer `transformers` rebuild Qwen's and Llama's classes with a fixed
  # pre-tokenizer; the file of a checkpoint is taken as it is.
  kind: Any = transformers.AutoTokenizer
  if (found / "tokenizer.json").exists():
    kind = transformers.PreTrainedTokenizerFast
  elif not (found / "vocab.json").exists():
    raise ValueError(
      f"{found} holds no tokenizer.json; copy the tokenizer files of the model "
      "there or name their folder in config.model.tokenizer."
    )
  try:
    loaded = kind.from_pretrained(found, local_files_only=True)
  # The tokenizers library raises plain `Exception` for a damaged file.
  except Exception as error:
    raise ValueError(
      f"the tokenizer in {found} does not load: {str(error).splitlines()[0]}"
    ) from error
  # The decoder's positions are the limit; `transformers` would warn of the
  # length that stands in the tokenizer's file.
  loaded.model_max_length = _NO_LIMIT
  return loaded


def texts(
  rollouts: types.Rollouts,
  tokenizer: Tokenizer,
  stop_ids: Sequence[int],
) -> list[list[str]]:
  """Returns the completions as texts, [B][G], without their stop token."""
  batch, group_size, _ = rollouts.completion_ids.shape
  stops = set(stop_ids)
  lengths = rollouts.completion_mask.sum(-1)
  flat = [
    [int(token) for token in row[:length] if token not in stops]
    for group, group_lengths in zip(rollouts.completion_ids, lengths)
    for row, length in zip(group, group_lengths)
  ]
  decoded = tokenizer.batch_decode(flat, skip_special_tokens=False)
  return [decoded[b * group_size : (b + 1) * group_size] for b in range(batch)]


def copy(path: str | pathlib.Path, folder: pathlib.Path) -> None:
  """Writes a checkpoint's tokenizer files and chat template to a folder.

  Args:
    path: A folder with tokenizer files, a .gguf file, or "bundled:tiny".
    folder: An existing folder.

  Raises:
    ValueError: If the checkpoint has no tokenizer.
  """
  found = source.locate(path)
  if found.is_file():
    load(found).save_pretrained(folder)
    _name_class(folder / "tokenizer_config.json")
    return
  present = [
    name for name in source.TOKENIZER_FILES if (found / name).is_file()
  ]
  if not {"tokenizer.json", "vocab.json"} & set(present):
    raise ValueError(
      f"{found} holds no tokenizer.json; name the folder that has it."
    )
  for name in present:
    shutil.copyfile(found / name, folder / name)


def _name_class(path: pathlib.Path) -> None:
  """States the class under the name that old and new readers know."""
  fields = dict(source.read_json(path))
  fields["tokenizer_class"] = "PreTrainedTokenizerFast"
  path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n")


def from_gguf(file: gguf.GgufFile) -> Tokenizer:
  """Rebuilds the byte-level BPE tokenizer from a file's metadata.

  Args:
    file: A parsed GGUF file.

  Returns:
    The tokenizer, with special tokens and the chat template if there is one.

  Raises:
    ValueError: If the file's kind of tokenizer is not covered.
  """
  kind = file.metadata.get("tokenizer.ggml.model")
  if kind != "gpt2":
    raise ValueError(
      f"tokenizer.ggml.model must be 'gpt2' (byte-level BPE), {file.path} says "
      f"{kind!r}; name a folder with tokenizer files instead."
    )
  tokens = file.metadata["tokenizer.ggml.tokens"]
  kinds = file.metadata["tokenizer.ggml.token_type"]
  is_llama = _is_llama(file)
  merges = [
    tuple(merge.split(" "))
    for merge in file.metadata.get("tokenizer.ggml.merges", ())
  ]
  built = tokenizers.Tokenizer(
    models.BPE(
      # Unused tokens only fill the embedding up to its size.
      vocab={
        token: index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != gguf.UNUSED
      },
      merges=merges,
      ignore_merges=is_llama,
    )
  )
  if not is_llama:
    built.normalizer = normalizers.NFC()
  built.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(
        tokenizers.Regex(_LLAMA3_SPLIT if is_llama else _QWEN_SPLIT),
        behavior="isolated",
      ),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  built.decoder = decoders.ByteLevel()
  built.add_tokens(
    [
      tokenizers.AddedToken(token, special=kind == gguf.CONTROL)
      for token, kind in zip(tokens, kinds, strict=True)
      if kind in (gguf.CONTROL, gguf.USER_DEFINED)
    ]
  )
  built.post_processor = _post_processor(file, tokens)
  return _with_special_tokens(file, built, tokens)


def _is_llama(file: gguf.GgufFile) -> bool:
  """Whether text is cut as by Llama 3, else as by Qwen."""
  name = file.metadata.get("tokenizer.ggml.pre", "default")
  if name in ("default", ""):
    return file.metadata.get("general.architecture") == "llama"
  if name not in (*_LLAMA3_NAMES, "qwen2"):
    raise ValueError(
      f"tokenizer.ggml.pre must be 'qwen2' or 'llama-bpe', {file.path} says "
      f"{name!r}; name a folder with tokenizer files instead."
    )
  return name in _LLAMA3_NAMES


def _post_processor(
  file: gguf.GgufFile, tokens: list[str]
) -> processors.PostProcessor:
  """Puts the beginning token before a text where the model wants one."""
  if not gguf.adds_bos(file):
    return processors.ByteLevel(trim_offsets=False)
  index = file.metadata["tokenizer.ggml.bos_token_id"]
  return processors.TemplateProcessing(
    single=f"{tokens[index]} $A",
    pair=f"{tokens[index]} $A {tokens[index]} $B",
    special_tokens=[(tokens[index], index)],
  )


def _with_special_tokens(
  file: gguf.GgufFile, built: tokenizers.Tokenizer, tokens: list[str]
) -> Tokenizer:
  """Wraps the tokenizer with its special tokens and chat template."""
  special = {
    name.removesuffix("_id"): tokens[index]
    for name, index in gguf.token_fields(file).items()
  }
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=built,
    clean_up_tokenization_spaces=False,
    model_max_length=file.metadata[
      f"{file.metadata['general.architecture']}.context_length"
    ],
    **special,
  )
  tokenizer.chat_template = file.metadata.get("tokenizer.chat_template")
  return tokenizer
