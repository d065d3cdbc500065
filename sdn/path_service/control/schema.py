# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of the operator's socket, from the types of its requests and answers."""

import inspect
from typing import Any

import msgspec

from sdn.path_service.admin import Request
from sdn.path_service.control.answers import Changed, Changes, ControlState, Effects, Reloaded


def operator_schema() -> dict[str, Any]:
    """`$defs/Request`, and the answers to requests of changes. `operator_schema.json` in the folder above has it."""
    answers = Changed, Effects, Changes, Reloaded, ControlState
    (request, *_), definitions = msgspec.json.schema_components((Request, *answers), ref_template="#/$defs/{name}")
    for definition in definitions.values():
        if "description" in definition:  # Python 3.13 removes the indentation of docstrings; before, they keep it
            definition["description"] = inspect.cleandoc(definition["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "paralet path service, the operator's socket: one request a line, and one answer",
        "$ref": "#/$defs/Request",
        "$defs": {"Request": request, **definitions},
    }
