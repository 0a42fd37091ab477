"""What must hold of the checkout and its environment."""

import importlib.metadata
import importlib.util

import pytest


@pytest.mark.parametrize("name", ["tensorflow", "seqio", "torch"])
def test_environment_is_free_of(name):
  assert importlib.util.find_spec(name) is None
  installed = {
    (distribution.metadata["Name"] or "").lower()
    for distribution in importlib.metadata.distributions()
  }
  assert not any(other.startswith(name) for other in installed)


def test_jetstream_is_the_tested_release():
  assert importlib.metadata.version("google-jetstream") == "0.2.2"
