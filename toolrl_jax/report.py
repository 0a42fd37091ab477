"""The command `toolrl-report`: folders of runs to one HTML page.

    toolrl-report WORKDIR [WORKDIR ...] [--out=FILE] [--recipe=FILE]

WORKDIR is the --workdir of toolrl-train or of toolrl-evaluate. The page holds
curves, the time of each stage, samples with their reward parts, scores,
configurations and warnings; several runs stand side by side. It is one file
that needs no network. A run may still be going on; damaged files are named in
the page. A mistake ends with one line and status 2.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from toolrl_jax import command_line
from toolrl_jax.reporting import page, runs, settings

# Of a page that may be written over.
_BEGINNING = b"<!doctype html>"

_ABOUT = """\
Writes what runs left in their folders as one HTML page that needs no network."""

_EXAMPLES = """\
WORKDIR is the --workdir of toolrl-train or of toolrl-evaluate, also while it is
still going on. The page has curves, time by stage, samples with the parts of
their reward, scores, configurations and warnings; several runs stand side by
side; damaged files are named in it.

examples:
  toolrl-report /tmp/tiny                  writes /tmp/tiny/report.html
  toolrl-report /tmp/one /tmp/two --out=compare.html
  toolrl-report /tmp/mine --recipe=configs/tiny.py

Prints the file's name; a mistake is one line and status 2."""


def run(argv: Sequence[str] | None = None) -> None:
  """Runs the command; a user's mistake ends with one line and status 2.

  Args:
    argv: Arguments without the program's name. None: those of the process.
  """
  try:
    arguments = _parse(argv)
    path = write(arguments.workdirs, out=arguments.out, recipe=arguments.recipe)
  except (ValueError, OSError, RuntimeError) as error:
    sys.stderr.write(f"toolrl-report: {' '.join(str(error).split())}\n")
    sys.exit(2)
  sys.stdout.write(f"{path}, {path.stat().st_size / 1e6:.1f} MB\n")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = command_line.FlagParser(
    prog="toolrl-report",
    description=_ABOUT,
    epilog=_EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "workdirs", metavar="WORKDIR", nargs="+", help="folder of a run"
  )
  parser.add_argument(
    "--out",
    type=pathlib.Path,
    help="file to write; by default report.html in the first WORKDIR",
  )
  parser.add_argument(
    "--recipe",
    type=pathlib.Path,
    help="recipe that configurations are compared with, a Python file that is "
    "run; by default the one in configs/ that the run names",
  )
  return parser.parse_args(argv)


def write(
  workdirs: Sequence[str | pathlib.Path],
  *,
  out: str | pathlib.Path | None = None,
  recipe: str | pathlib.Path | None = None,
) -> pathlib.Path:
  """Reads runs and writes their page, whole or not at all.

  Args:
    workdirs: Folders of runs, at least one.
    out: File to write. None: report.html in the first folder.
    recipe: Recipe file to compare with. None: the nearest one.

  Returns:
    The file.

  Raises:
    ValueError: A folder is no run, or the recipe cannot be read.
    OSError: The file cannot be written.
  """
  found = runs.read_all(workdirs)
  path = pathlib.Path(out) if out is not None else _default(found)
  path = _checked(path)
  beside = settings.load(recipe) if recipe else settings.recipe_of(found)
  text = page.render(found, default=settings.defaults(), recipe=beside)
  partial = path.with_name(f".{path.name}.partial")
  try:
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)
  return path


def _default(found: Sequence[runs.Run]) -> pathlib.Path:
  return found[0].folder / "report.html"


def _checked(path: pathlib.Path) -> pathlib.Path:
  """Returns the path of the page, if a page can stand there.

  Raises:
    ValueError: It cannot.
  """
  path = path.expanduser().absolute()
  if not path.parent.is_dir():
    raise ValueError(
      f"--out must be a file in a folder that is there, got {path}; make "
      f"{path.parent} or name another."
    )
  # Renaming the page over a device would take the device away.
  if path.exists() and not path.is_file():
    raise ValueError(f"--out must be a file, {path} is none; name another.")
  if path.is_file() and path.stat().st_size:
    with path.open("rb") as file:
      is_page = file.read(len(_BEGINNING)).lower() == _BEGINNING
    if not is_page:
      raise ValueError(
        f"--out must be a page or a new file, {path} is there and is no page; "
        "name another."
      )
  return path


if __name__ == "__main__":
  run()
