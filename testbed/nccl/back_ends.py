# SPDX-License-Identifier: Apache-2.0
"""The back ends of a build of the plugin: the values of PARALET_BACKEND, by the table of parameters beside it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import InputError
from testbed.nccl import environment

TABLE = "parameters.json"


def beside(plugin: Path) -> list[str]:
    """The names, such as ["soft", "verbs"]; none where the plugin came without its table."""
    try:
        rows = json.loads(plugin.with_name(TABLE).read_text())
    except FileNotFoundError:
        return []
    return [name for row in rows if row["name"] == "PARALET_BACKEND" for name in _names(row["values"])]


def check(transports: Sequence[str], plugin: Path | None) -> None:
    """Raises InputError for a name that is no transport and no back end of the plugin."""
    known = beside(plugin) if plugin else []
    for name in transports:
        taken = environment.named(name)
        if name not in environment.TRANSPORTS and taken.ours and taken.variables["PARALET_BACKEND"] not in known:
            sharded = [f"{each}:K" for each in environment.SHARDED if each in known]
            names = ", ".join([*environment.TRANSPORTS, "Socket:TxS", *known, *sharded])
            raise InputError(f"--transports: {name!r} is none of {names} (K: 1 to {environment.MOST_SHARDS})")


def _names(values: str) -> list[str]:
    """Of words such as "soft, tcp or verbs"."""
    return [word for word in re.findall(r"[a-z]+", values) if word != "or"]
