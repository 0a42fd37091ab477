"""The Python of a notebook to one that can import this checkout.

Run by the first cell of every notebook, before anything is installed, so it
knows the standard library only. It installs the checkout it lies in with its
dependencies, and with those of the accelerator that the machine has; a Python
that has them already is left as it is.
"""

import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping

_PACKAGE = "toolrl-jax"
_CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
_PCI = pathlib.Path("/sys/bus/pci/devices")
_GPU = pathlib.Path("/dev/nvidia0")
_GOOGLE_PCI_VENDOR = "0x1ae0"
# Classes of the vendor's other devices: disks, networks, bridges.
_NO_TPU = ("0x01", "0x02", "0x06")
_NUM_LINES = 15


def prepare(checkout: pathlib.Path = _CHECKOUT) -> pathlib.Path:
  """Makes a checkout importable, with everything it needs.

  Args:
    checkout: Folder with pyproject.toml.

  Returns:
    The folder; recipes lie in its `configs`.

  Raises:
    SystemExit: The installation failed, or the session has to be restarted;
      the text says so.
  """
  extra = accelerator_extra()
  if not is_installed(checkout):
    sys.stdout.write("installing, one to three minutes ...\n")
    before = loaded_versions()
    install(checkout, extra)
    replaced = sorted(
      name
      for name, version in loaded_versions().items()
      if before.get(name, version) != version
    )
    if replaced:
      raise SystemExit(
        f"Installed. {', '.join(replaced)} had been loaded in an older "
        "version: restart the session (Runtime > Restart session), then run "
        "this cell again."
      )
  # An editable install is only seen by a Python that starts after it, and the
  # recipes in configs/ are no part of the package.
  if str(checkout) not in sys.path:
    sys.path.insert(0, str(checkout))
  sys.stdout.write(f"toolrl_jax from {checkout}, for {extra or 'CPU'}\n")
  return checkout


def is_installed(checkout: pathlib.Path) -> bool:
  """Returns whether this Python has the checkout as an editable install."""
  try:
    record = importlib.metadata.distribution(_PACKAGE).read_text(
      "direct_url.json"
    )
  except importlib.metadata.PackageNotFoundError:
    return False
  origin = json.loads(record or "{}")
  url = urllib.parse.urlparse(origin.get("url", ""))
  is_editable = origin.get("dir_info", {}).get("editable", False)
  folder = pathlib.Path(urllib.parse.unquote(url.path))
  return is_editable and folder.resolve() == checkout.resolve()


def accelerator_extra(
  pci: pathlib.Path = _PCI, gpu: pathlib.Path = _GPU
) -> str:
  """Returns the extra of pyproject.toml that the machine's devices need.

  Args:
    pci: Where the kernel lists PCI devices.
    gpu: The first GPU.

  Returns:
    "tpu", "gpu", or "" where there is neither.
  """
  for vendor in pci.glob("*/vendor"):
    kind = vendor.with_name("class").read_text()
    is_google = vendor.read_text().strip() == _GOOGLE_PCI_VENDOR
    if is_google and not kind.startswith(_NO_TPU):
      return "tpu"
  return "gpu" if gpu.exists() else ""


def install(checkout: pathlib.Path, extra: str) -> None:
  """Installs a checkout with uv, which is fetched where it is missing.

  Args:
    checkout: Folder with pyproject.toml.
    extra: An extra of it, or "".

  Raises:
    SystemExit: It failed; the text is the end of what uv said.
  """
  uv = shutil.which("uv")
  if uv is None:
    _run([sys.executable, "-m", "pip", "install", "--quiet", "uv"], checkout)
  command = [uv] if uv else [sys.executable, "-m", "uv"]
  target = f".[{extra}]" if extra else "."
  # In the checkout: uv reads the overrides that leave TensorFlow out from the
  # pyproject.toml of the folder it runs in.
  _run(
    [*command, "pip", "install", "--python", sys.executable, "-e", target],
    checkout,
  )


def loaded_versions() -> Mapping[str, str]:
  """Returns the installed version of every distribution in use here."""
  by_module = importlib.metadata.packages_distributions()
  names = {
    name
    for module in {module.partition(".")[0] for module in sys.modules}
    for name in by_module.get(module, ())
  }
  return {name: importlib.metadata.version(name) for name in names}


def _run(command: list[str], folder: pathlib.Path) -> None:
  done = subprocess.run(
    command,
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
  )
  if done.returncode:
    said = "\n".join(done.stdout.splitlines()[-_NUM_LINES:])
    raise SystemExit(f"{' '.join(command)} failed:\n{said}")
