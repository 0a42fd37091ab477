"""What a run was made with: recipe, rows, devices, versions of packages.

From the process to `run.json`, beside `config.json`, for who reads a run later.
Nothing of it decides what a run computes.
"""

import importlib.metadata
import pathlib
import sys
from typing import NamedTuple

import jax

from toolrl_jax import json_file

_PACKAGES = ("toolrl-jax", "jax", "flax", "google-jetstream", "transformers")


class Provenance(NamedTuple):
  """What run.json holds beside devices and versions.

  Attributes:
    recipe: Name of the recipe's file, with what follows its colon; empty where
      the run was started from Python.
    num_train_rows: Rows that are trained on.
    num_heldout_rows: Rows that are only answered, 0 without any.
    num_params: Parameters of the model.
  """

  recipe: str
  num_train_rows: int
  num_heldout_rows: int
  num_params: int


def versions() -> dict[str, str]:
  """Returns the versions that a score may depend on."""
  found = {"python": ".".join(map(str, sys.version_info[:3]))}
  for name in _PACKAGES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found[name] = "unknown"
  return found | {"platform": jax.default_backend()}


def write(folder: pathlib.Path, made_with: Provenance) -> None:
  """Writes run.json, whole or not at all; the last start's is kept.

  Args:
    folder: Of the run.
    made_with: What it was started with.
  """
  document = {
    **made_with._asdict(),
    "device_kind": jax.devices()[0].device_kind,
    "num_devices": jax.device_count(),
    "num_processes": jax.process_count(),
    "versions": versions(),
  }
  json_file.write(folder / "run.json", document)
