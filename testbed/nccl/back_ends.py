# SPDX-License-Identifier: Apache-2.0
"""The back ends of a build of the plugin: the values of PARALET_BACKEND, by the table of parameters beside it."""

import json
import re
from pathlib import Path

TABLE = "parameters.json"


def beside(plugin: Path) -> list[str]:
    """The names, such as ["soft", "verbs"]; none where the plugin came without its table."""
    try:
        rows = json.loads(plugin.with_name(TABLE).read_text())
    except FileNotFoundError:
        return []
    return [name for row in rows if row["name"] == "PARALET_BACKEND" for name in _names(row["values"])]


def _names(values: str) -> list[str]:
    """Of words such as "soft, tcp or verbs"."""
    return [word for word in re.findall(r"[a-z]+", values) if word != "or"]
