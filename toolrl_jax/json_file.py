"""A JSON document to a file that is whole or not there.

Knows nothing of what documents hold.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any


def write(
  path: pathlib.Path, document: Mapping[str, Any], *, sort_keys: bool = False
) -> None:
  """Writes a document in one go: a kill leaves the old file or the new one.

  Args:
    path: The file; its folder is there.
    document: JSON values.
    sort_keys: Whether keys stand in alphabetical order.
  """
  partial = path.with_suffix(".partial")
  text = json.dumps(document, indent=2, sort_keys=sort_keys)
  partial.write_text(text + "\n", encoding="utf-8")
  partial.replace(path)
