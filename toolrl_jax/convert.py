"""The command `toolrl-convert`: checkpoints from one form to another.

    toolrl-convert SRC DST [--to=hf|orbax] [--dtype=...] [--step=N]

SRC is a Hugging Face folder, a .gguf file, "bundled:tiny", a folder that
`--to=orbax` wrote, or the workdir of a run. DST is a Hugging Face folder, or
with `--to=orbax` a folder with the parameters as an Orbax checkpoint. DST is
whole or not there at all; a mistake ends with one line and status 2.
"""

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from toolrl_jax import command, command_line, configuration
from toolrl_jax.model import decoder, presets, source, weights

_ABOUT = """\
Turns a checkpoint into another form, dtype or number of files."""

_EXAMPLES = """\
SRC is a Hugging Face folder with safetensors, a .gguf file, "bundled:tiny", a
folder that --to=orbax wrote, or the workdir of a run.

examples:
  toolrl-convert model.gguf /data/model          GGUF to Hugging Face
  toolrl-convert /data/model /data/half --dtype=bfloat16
  toolrl-convert /data/model /data/orbax --to=orbax
  toolrl-convert /tmp/run /tmp/step30 --step=30  a checkpoint of a run

DST gets config, tokenizer, chat template and weights: a Hugging Face folder, or
with --to=orbax the weights as an Orbax checkpoint. It is whole or not there at
all; an older checkpoint there is replaced, anything else refused. Qwen2.5,
Qwen3 (dense) and Llama 3 are read (docs/real_weights.md). Prints DST; a mistake
is one line and status 2."""

_DTYPES = ("float32", "bfloat16", "float16")
_PARAMS = "params"

Form = Literal["checkpoint", "orbax", "workdir"]


class Loaded(NamedTuple):
  """A model in memory.

  Attributes:
    config: Shape of the decoder.
    params: Parameter pytree.
    tokenizer_from: Checkpoint with its tokenizer files, or None.
  """

  config: presets.DecoderConfig
  params: decoder.Params
  tokenizer_from: str | pathlib.Path | None


def run(argv: Sequence[str] | None = None) -> None:
  """Runs the command; a user's mistake ends with one line and status 2.

  Args:
    argv: Arguments without the program's name. None: those of the process.
  """
  command.prepare_logging()
  # Conversion needs no accelerator, and the model may not fit into one.
  jax.config.update("jax_platforms", "cpu")
  try:
    arguments = _parse(argv)
    convert(
      arguments.src,
      arguments.dst,
      form=arguments.form,
      to=arguments.to,
      dtype=arguments.dtype,
      step=arguments.step,
      max_shard_bytes=int(arguments.max_shard_gb * 1e9),
    )
  except (ValueError, OSError) as error:
    sys.exit(_fail(str(error)))
  sys.stdout.write(f"{arguments.dst}\n")


def _fail(message: str) -> int:
  sys.stderr.write(f"toolrl-convert: {' '.join(message.split())}\n")
  return 2


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = command_line.FlagParser(
    prog="toolrl-convert",
    description=_ABOUT,
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("src", help="checkpoint or run to read")
  parser.add_argument("dst", help="folder to write")
  parser.add_argument(
    "--from",
    dest="form",
    choices=("auto", "checkpoint", "orbax", "workdir"),
    default="auto",
    help="form of SRC; by default told from what lies there",
  )
  parser.add_argument(
    "--to", choices=("hf", "orbax"), default="hf", help="form of DST"
  )
  parser.add_argument(
    "--dtype",
    choices=_DTYPES,
    help="dtype of DST; by default that of SRC, float32 for GGUF",
  )
  parser.add_argument(
    "--step", type=int, help="step of a run; by default its newest"
  )
  parser.add_argument(
    "--max-shard-gb",
    type=_gigabytes,
    default=5.0,
    help="gigabytes above which the weights are split over files",
  )
  return parser.parse_args(argv)


def _gigabytes(text: str) -> float:
  value = float(text)
  if not 1e-6 <= value <= 1e6:
    raise argparse.ArgumentTypeError(f"must be in [1e-6, 1e6], got {text}")
  return value


def convert(
  src: str,
  dst: str,
  *,
  form: Form | Literal["auto"] = "auto",
  to: Literal["hf", "orbax"] = "hf",
  dtype: str | None = None,
  step: int | None = None,
  max_shard_bytes: int = 5_000_000_000,
) -> None:
  """Reads a model and writes it in another form.

  Args:
    src: Checkpoint, Orbax folder or workdir.
    dst: Folder to write; an older checkpoint there is replaced.
    form: Form of `src`; "auto" tells it from what lies there.
    to: Form of `dst`.
    dtype: Dtype of every tensor written. None: that of `src`.
    step: Step of a run. None: the newest.
    max_shard_bytes: Size above which the weights are split over files.

  Raises:
    ValueError: If `src` cannot be read or `dst` not be replaced.
  """
  found = source.locate(src)
  if dst.startswith("bundled:"):
    raise configuration.UsageError(
      f"DST must be a folder, {dst!r} names what the package brings; name a path."
    )
  target = command_line.local_path("DST", dst).resolve()
  if form == "auto":
    form = _form_of(found)
  # A run's folder has room for more, but not among its checkpoints.
  taken = found / "checkpoints" if form == "workdir" else found
  if target == found.resolve() or taken.resolve() in (target, *target.parents):
    raise ValueError(
      f"DST is SRC or lies among its files, {dst}; name another folder."
    )
  if step is not None and form != "workdir":
    raise ValueError(f"--step is for the workdir of a run, {src} is none.")
  if form == "checkpoint":
    dtype = dtype or _dtype_of(found)
    if to == "hf":
      weights.copy(found, dst, dtype=dtype, max_shard_bytes=max_shard_bytes)
      return
    config, params = weights.load(found, dtype=dtype)
    loaded = Loaded(config, params, found)
  elif form == "orbax":
    loaded = _load_orbax(found, dtype)
  else:
    loaded = _load_run(found, dtype, step)
  if to == "orbax":
    _save_orbax(dst, loaded)
    return
  weights.save(
    dst,
    loaded.config,
    loaded.params,
    tokenizer_from=loaded.tokenizer_from,
    max_shard_bytes=max_shard_bytes,
  )


def _form_of(found: pathlib.Path) -> Form:
  """Tells the form of a source from the folders in it."""
  if (found / "checkpoints").is_dir():
    return "workdir"
  return "orbax" if (found / _PARAMS).is_dir() else "checkpoint"


def _dtype_of(found: pathlib.Path) -> str:
  """Returns the dtype that a checkpoint states, else float32."""
  if found.is_file():
    return "float32"
  fields = source.read_json(found / "config.json")
  stated = fields.get("dtype") or fields.get("torch_dtype")
  return stated if stated in _DTYPES else "float32"


def _load_orbax(found: pathlib.Path, dtype: str | None) -> Loaded:
  """Reads what `--to=orbax` wrote."""
  config = weights.load_config(found)
  params = _restore(found / _PARAMS, config, dtype or _dtype_of(found))
  return Loaded(config, params, _tokenizer_source(found))


def _load_run(
  workdir: pathlib.Path, dtype: str | None, step: int | None
) -> Loaded:
  """Reads the parameters of one step of a run."""
  section = source.read_json(workdir / "config.json").get("model")
  if not isinstance(section, dict):
    raise ValueError(
      f"{workdir / 'config.json'} is not the configuration of a run."
    )
  config = _run_config(section)
  folder = _step_folder(workdir / "checkpoints", step)
  dtype = dtype or section.get("param_dtype") or "float32"
  params = _restore(folder / "state", config, dtype, below=_PARAMS)
  return Loaded(config, params, section.get("tokenizer") or section.get("path"))


def _run_config(section: Mapping[str, Any]) -> presets.DecoderConfig:
  """Returns the shape of a run's model from its configuration."""
  if section.get("path"):
    return weights.load_config(section["path"])
  return presets.lookup(section.get("preset") or "")


def _step_folder(folder: pathlib.Path, step: int | None) -> pathlib.Path:
  """Returns the folder of a step, or of the newest."""
  steps = sorted(
    int(path.name)
    for path in folder.iterdir()
    if path.name.isdigit() and (path / "state").is_dir()
  )
  if not steps:
    raise ValueError(f"{folder} holds no saved step; let the run save one.")
  if step is not None and step not in steps:
    raise ValueError(
      f"--step must be one of {', '.join(map(str, steps))} in {folder}, got "
      f"{step}."
    )
  return folder / str(steps[-1] if step is None else step)


def _tokenizer_source(found: pathlib.Path) -> pathlib.Path | None:
  has_files = any(
    (found / name).exists() for name in ("tokenizer.json", "vocab.json")
  )
  return found if has_files else None


def _restore(
  folder: pathlib.Path,
  config: presets.DecoderConfig,
  dtype: str,
  *,
  below: str | None = None,
) -> decoder.Params:
  """Reads a parameter tree, or the one under a key of a larger tree."""
  single = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  tree = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(
      leaf.shape, np.dtype(dtype), sharding=single
    ),
    decoder.param_shapes(config),
  )
  item = tree if below is None else {below: tree}
  what = f"the parameters in {folder} do not load"
  with _one_line(what), ocp.PyTreeCheckpointer() as checkpointer:
    restored = checkpointer.restore(
      folder.absolute(),
      args=ocp.args.PyTreeRestore(
        item=item,
        restore_args=ocp.checkpoint_utils.construct_restore_args(item),
        partial_restore=True,
      ),
    )
  params = restored if below is None else restored[below]
  for path, leaf in jax.tree.leaves_with_path(
    params, is_leaf=lambda node: node is None
  ):
    # What the folder lacks comes back as it was asked for.
    if not isinstance(leaf, jax.Array):
      raise ValueError(
        f"the parameters in {folder} do not hold "
        f"{jax.tree_util.keystr(path, simple=True, separator='/')}; the "
        "configuration beside them is of another model."
      )
  return params


def _save_orbax(dst: str, loaded: Loaded) -> None:
  """Writes config, tokenizer files and an Orbax checkpoint of parameters."""
  dtype = jax.tree.leaves(loaded.params)[0].dtype
  with source.whole_folder(dst) as folder:
    weights.save_description(
      folder,
      loaded.config,
      dtype=dtype,
      tokenizer_from=loaded.tokenizer_from,
    )
    what = f"the parameters cannot be written to {dst}"
    with _one_line(what), ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(folder / _PARAMS, loaded.params)


@contextlib.contextmanager
def _one_line(what: str) -> Iterator[None]:
  """Says what failed in one line, whatever Orbax raises."""
  try:
    yield
  # Orbax and tensorstore raise many kinds: damage, a full disk.
  except Exception as error:  # noqa: BLE001
    reason = (str(error).splitlines() or ["no reason given"])[0]
    raise ValueError(f"{what}: {reason[:300]}") from error


if __name__ == "__main__":
  run()
