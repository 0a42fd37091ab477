"""BFCL's function documents in the form that a prompt shows.

From the documents of an entry to tool documents. BFCL writes types of its own
("dict", "float", "tuple", "any"); the package shows them raw to local models
and turns them into JSON schema for vendors' interfaces. Which of the two a
model saw belongs to its score. This module does not know prompts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Form = Literal["raw", "json_schema"]
Names = Literal["dotted", "underscored"]

# As the package's GORILLA_TO_OPENAPI (bfcl-eval 2026.3.23) maps the types that
# occur once the language hints have made all Java and JavaScript ones strings.
_JSON_TYPES = {
  "any": "string",
  "bool": "boolean",
  "dict": "object",
  "float": "number",
  "list": "array",
  "tuple": "array",
}


def shown(
  documents: Sequence[Mapping[str, Any]],
  *,
  form: Form = "raw",
  names: Names = "dotted",
) -> tuple[Mapping[str, Any], ...]:
  """Returns documents as a prompt shows them.

  Args:
    documents: Documents of an entry.
    form: "raw" leaves everything; "json_schema" gives name, description and
      parameters with JSON types, and words the return value in the
      description.
    names: "underscored" writes `_` for `.` in function names, as interfaces
      need it that allow no dot.

  Returns:
    New documents; those given are not changed.
  """
  return tuple(_shown(document, form, names) for document in documents)


def underscored(name: str) -> str:
  """Returns a function name without dots, as the package writes it."""
  return re.sub(r"\.", "_", name)


def _shown(
  document: Mapping[str, Any], form: Form, names: Names
) -> dict[str, Any]:
  changed = dict(document)
  if names == "underscored":
    changed["name"] = underscored(changed["name"])
  if form == "raw":
    return changed
  description = str(changed.get("description", ""))
  if "response" in changed:
    description += f" Returns: {changed['response']}"
  return {
    "name": changed["name"],
    "description": description,
    "parameters": _schema(changed["parameters"]),
  }


def _schema(schema: Any) -> Any:
  """Maps the types of a schema; names of parameters are left alone."""
  if not isinstance(schema, Mapping):
    return schema
  changed = dict(schema)
  if isinstance(changed.get("type"), str):
    changed["type"] = _JSON_TYPES.get(changed["type"], changed["type"])
  if isinstance(changed.get("properties"), Mapping):
    changed["properties"] = {
      name: _schema(part) for name, part in changed["properties"].items()
    }
  if "items" in changed:
    changed["items"] = _schema(changed["items"])
  return changed
