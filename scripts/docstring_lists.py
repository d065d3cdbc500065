# SPDX-License-Identifier: Apache-2.0
"""An extension of griffe for the documentation site: definitions in docstrings become Markdown lists.

A definition is a line of names in double backticks, and an indented text below it, as in `hostlib.Device`.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

DEFINITION = re.compile(r"^(?P<names>``\w+``(?:, ``\w+``)*)\n(?P<text>(?: {4}.+\n?)+)", re.MULTILINE)


class DefinitionLists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = DEFINITION.sub(r"- \g<names>:\n\g<text>", obj.docstring.value)
