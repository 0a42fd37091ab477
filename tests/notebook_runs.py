"""The notebooks of colab/, read and run with other values in their forms."""

import pathlib
import re

import nbclient
import nbformat

COLAB = pathlib.Path(__file__).parents[1] / "colab"
NAMES = (
  "quickstart",
  "reward_playground",
  "streak_and_selection",
  "train_qwen_0p5b",
  "read_run",
)


def read(name) -> nbformat.NotebookNode:
  return nbformat.read(COLAB / f"{name}.ipynb", as_version=4)


def code(notebook) -> list[str]:
  return [c.source for c in notebook.cells if c.cell_type == "code"]


def with_fields(notebook, **fields) -> nbformat.NotebookNode:
  """Fills form fields in, as a reader would; each must be there once."""
  for name, value in fields.items():
    line = re.compile(rf"^{name} = .*?(?=  # @param)", re.MULTILINE)
    found = 0
    for cell in notebook.cells:
      cell.source, count = line.subn(
        lambda _, n=name, v=value: f"{n} = {v!r}", cell.source
      )
      found += count
    assert found == 1, f"the form has no field {name}"
  return notebook


def run(name, **fields) -> nbformat.NotebookNode:
  """Executes a notebook where it lies; fails where a cell fails."""
  notebook = with_fields(read(name), **fields)
  nbclient.NotebookClient(
    notebook,
    timeout=1500,
    kernel_name="python3",
    resources={"metadata": {"path": str(COLAB)}},
  ).execute()
  return notebook


def texts(notebook) -> list[str]:
  """What each code cell shows as text, in order."""
  return [
    "".join(
      output.get("text", "") or output.get("data", {}).get("text/plain", "")
      for output in cell.outputs
    )
    for cell in notebook.cells
    if cell.cell_type == "code"
  ]
