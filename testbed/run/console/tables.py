# SPDX-License-Identifier: Apache-2.0
"""What commands show of a fabric, as tables. Pure, and of data that another process may have sent."""

from collections.abc import Mapping, Sequence
from typing import Any

from netmodel.printable import printable


def nodes_table(nodes: Sequence[Mapping[str, Any]]) -> str:
    """The nodes of `views.nodes_of`."""
    rows = [
        (node["name"], node["role"], " ".join(node["addresses"].values()) or "-", str(node["pid"])) for node in nodes
    ]
    return columns([("name", "role", "addresses", "pid"), *rows])


def links_table(links: Sequence[Mapping[str, Any]]) -> str:
    """The links of `views.links_of`."""
    rows = [
        (
            f"{link['a']} {link['b']}",
            "up" if link["up"] else "down",
            link["rate"] if link["part"] == 1 else f"{100 * link['part']:g} % of {link['rate']}",
            "; ".join(f"{port} {what}" for port, what in link["faults"].items()) or "-",
        )
        for link in links
    ]
    return columns([("link", "state", "rate", "faults"), *rows])


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, one a line, each column as wide as its widest cell."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown)
    return "".join(f"{line}\n" for line in lines)
