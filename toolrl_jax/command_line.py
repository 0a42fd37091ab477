"""The command line to a checked configuration.

Reads `--config=FILE`, `--config.x.y=z` and `--workdir=DIR`, and turns every
mistake into one line before any work starts. Knows nothing of what the fields
do.
"""

import argparse
import difflib
import pathlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import ml_collections
from absl import flags
from etils import epath
from ml_collections import config_flags

from toolrl_jax import configuration


class FlagParser(argparse.ArgumentParser):
  """An argument parser whose complaints are one line, a UsageError."""

  def error(self, message: str) -> NoReturn:
    """Refuses the command line."""
    raise configuration.UsageError(f"{message}; see {self.prog} --help.")


def load(
  argv: Sequence[str],
  usage: str,
  *,
  is_training: bool = True,
  example: str = "configs/tiny.py",
) -> tuple[ml_collections.ConfigDict, pathlib.Path | epath.Path]:
  """Parses a command line.

  Args:
    argv: Program name and arguments.
    usage: Text for `--help`, shown above the flags.
    is_training: Whether the fields that only training reads are checked.
    example: A recipe that suits the command, for who named none.

  Returns:
    The checked, frozen-by-convention configuration and the run's folder: an
    absolute local one, or for training one in object storage.

  Raises:
    UsageError: For anything the user can mend.
    SystemExit: For `--help`, once it is written.
  """
  values = flags.FlagValues()
  # The file's own folder's parent, so that `from configs import common` works
  # wherever the command is started.
  path = _config_path(argv)
  if path is not None:
    path = local_path("--config", str(path))
    sys.path.insert(0, str(path.resolve().parent.parent))
  if any(argument in ("--help", "-h", "-help") for argument in argv):
    sys.stdout.write(f"{usage}\n")
    raise SystemExit(0)
  if path is None:
    raise configuration.UsageError(
      f"--config=FILE is required, none was given; try --config={example}, "
      "or --help."
    )
  if not path.is_file():
    beside = [str(one) for one in path.parent.glob("*.py")]
    raise configuration.UsageError(
      f"--config names a file; there is no file {path}"
      f"{configuration.did_you_mean(str(path), beside)}"
    )
  config_flags.DEFINE_config_file(
    "config", None, "", flag_values=values, sys_argv=list(argv)
  )
  flags.DEFINE_string("workdir", None, "", flag_values=values)
  defaults = _check_overrides(argv, path)
  try:
    rest = values(list(argv))
  except flags.UnrecognizedFlagError as e:
    near = difflib.get_close_matches(e.flagname, ("config", "workdir"), n=1)
    hint = f"did you mean --{near[0]}?" if near else "see --help."
    raise configuration.UsageError(f"--{e.flagname} is no flag; {hint}") from e
  except flags.IllegalFlagValueError as e:
    raise configuration.UsageError(
      _wrong_value(argv, defaults) or _one_line(e)
    ) from e
  except (flags.Error, AttributeError, KeyError, TypeError, ValueError) as e:
    raise configuration.UsageError(_one_line(e)) from e
  except (Exception, SystemExit) as e:
    # A recipe is the user's own Python file and may fail in any way.
    raise configuration.UsageError(
      f"{path} could not be read: {_one_line(e)}"
    ) from e
  if len(rest) > 1:
    raise configuration.UsageError(
      f"arguments are --name=value; got {rest[1]!r}."
    )
  if not values["workdir"].value:
    raise configuration.UsageError(
      "--workdir=DIR is required: the folder a run writes to."
    )
  config = values["config"].value
  try:
    configuration.check(config, is_training=is_training)
  except (KeyError, AttributeError, TypeError) as e:
    raise configuration.UsageError(
      f"{path} does not give all fields: {_one_line(e)}; start from "
      "configs/common.py."
    ) from e
  return config, _workdir(values["workdir"].value, is_training)


def recipe_name(argv: Sequence[str]) -> str:
  """Returns the file name of the recipe, with what follows its colon.

  Args:
    argv: Program name and arguments.

  Returns:
    As "tiny.py" or "qwen25_0p5b_colab.py:gpu"; empty without a --config.
  """
  path, colon, argument = _config_value(argv).partition(":")
  return pathlib.Path(path).name + colon + argument


def local_path(flag: str, text: str) -> pathlib.Path:
  """Returns a path of the command line with ~ put in.

  Args:
    flag: What named it, for the message.
    text: As it was given.

  Raises:
    UsageError: It begins with the home of nobody here, or is no path.
  """
  try:
    path = pathlib.Path(text).expanduser()
    path.exists()
  except (RuntimeError, OSError, ValueError) as error:
    reason = getattr(error, "strerror", None) or str(error)
    raise configuration.UsageError(
      f"{flag} must be a path, got {configuration.shortened(text)}: {reason}"
    ) from error
  return path


def _workdir(text: str, is_training: bool) -> pathlib.Path | epath.Path:
  if "://" not in text:
    return local_path("--workdir", text).absolute()
  has_bucket = text.startswith("gs://") and text[5:].partition("/")[0]
  if not is_training or not has_bucket:
    kinds = "a local folder" + (" or gs://BUCKET/FOLDER" if is_training else "")
    raise configuration.UsageError(f"--workdir must be {kinds}, got {text!r}.")
  return epath.Path(text.rstrip("/"))


def _config_path(argv: Sequence[str]) -> pathlib.Path | None:
  """Finds the file named by --config before the flags are parsed."""
  # ml_collections passes what follows a colon to get_config.
  path = _config_value(argv).partition(":")[0]
  return pathlib.Path(path) if path else None


def _config_value(argv: Sequence[str]) -> str:
  values = []
  for index, argument in enumerate(argv):
    name, equals, value = argument.lstrip("-").partition("=")
    if argument.startswith("-") and name == "config":
      if not equals and index + 1 < len(argv):
        value = argv[index + 1]
      values.append(value)
  if len(values) > 1:
    raise configuration.UsageError(
      f"--config names one file, got {configuration.shortened(values[0])} and {configuration.shortened(values[1])}; "
      "leave one out."
    )
  return values[0] if values else ""


def _check_overrides(
  argv: Sequence[str], path: pathlib.Path
) -> ml_collections.ConfigDict:
  """Names the nearest field for an override that no field matches.

  Returns:
    The recipe without overrides.
  """
  reader = flags.FlagValues()
  config_flags.DEFINE_config_file(
    "config", None, "", flag_values=reader, sys_argv=[]
  )
  try:
    reader([argv[0], f"--config={path}"])
  except (Exception, SystemExit) as e:
    raise configuration.UsageError(
      f"{path} could not be read: {_one_line(e)}"
    ) from e
  config = reader["config"].value
  if not isinstance(config, ml_collections.ConfigDict):
    raise configuration.UsageError(
      f"{path} does not give all fields: get_config() returns a "
      f"{type(config).__name__}; start from common.get_config()."
    )
  names = set(configuration.field_names(config))
  for argument in argv[1:]:
    name = argument.lstrip("-").partition("=")[0]
    if not (argument.startswith("-") and name.startswith("config.")):
      continue
    name = name.removeprefix("config.")
    if name not in names:
      near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
      hint = f"; did you mean config.{near[0]}?" if near else "."
      raise configuration.UsageError(
        f"config.{name} is no field of {path} (the fields stand in "
        f"configs/common.py){hint}"
      )
  return config


def _wrong_value(
  argv: Sequence[str], config: ml_collections.ConfigDict
) -> str | None:
  """Says which override has a value of another kind than its field."""
  for argument in argv[1:]:
    name, _, text = argument.lstrip("-").partition("=")
    if not name.startswith("config."):
      continue
    default = configuration.value_of(config, name.removeprefix("config."))
    for kind, parse, what in (
      (bool, _parse_bool, "true or false"),
      (int, int, "a whole number"),
      (float, float, "a number"),
    ):
      if type(default) is kind:
        try:
          parse(text)
        except ValueError:
          return f"{name} must be {what}, as {default!r}, got {text[:60]!r}."
  return None


def _parse_bool(text: str) -> bool:
  return flags.BooleanParser().parse(text)


def _one_line(error: BaseException) -> str:
  text = str(error)
  if "Traceback (most recent call last)" in text:
    # ml_collections hands on what a recipe raised as a whole traceback.
    text = text.strip().splitlines()[-1]
  return " ".join(text.split()) or type(error).__name__
