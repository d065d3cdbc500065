# SPDX-License-Identifier: Apache-2.0
"""A topology as an SVG picture: hosts at the bottom, and each switch as far above as it is from the nearest host. Pure.

Nodes and links have titles, which browsers show under the pointer.
"""

from collections.abc import Mapping
from html import escape

import networkx as nx

from netmodel import Topology, format_rate
from netmodel.printable import printable

_COLUMN = 84
_ROW = 110
_MARGIN = 40
_BOX_WIDTH = 72
_BOX_HEIGHT = 26
_HOST_COLOUR, _SWITCH_COLOUR, _OPTICAL_COLOUR = "#dbe9f6", "#fde3c4", "#e2d6f0"


def svg_of(topology: Topology) -> str:
    """The picture as the text of an SVG file."""
    places = _places(topology)
    width = max(x for x, _ in places.values()) + _COLUMN / 2 + _MARGIN
    height = max(y for _, y in places.values()) + _BOX_HEIGHT / 2 + _MARGIN
    drawn = [*_links(topology, places), *_nodes(topology, places)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="12">\n'
        f"<title>{_text(topology.name)}</title>\n"
        '<rect width="100%" height="100%" fill="white"/>\n' + "".join(f"{line}\n" for line in drawn) + "</svg>\n"
    )


def _levels(topology: Topology) -> dict[str, int]:
    """By node: the number of links to the nearest host."""
    graph = nx.Graph((link.a.node, link.b.node) for link in topology.links)
    names = [host.name for host in topology.hosts]
    found = nx.multi_source_dijkstra_path_length(graph, {name for name in names if name in graph})
    return {name: int(found.get(name, 0)) for name in (*names, *(switch.name for switch in topology.switches))}


def _places(topology: Topology) -> dict[str, tuple[float, float]]:
    """By node: the middle of its box. Rows are centred."""
    levels = _levels(topology)
    rows: dict[int, list[str]] = {}
    for name, level in levels.items():
        rows.setdefault(level, []).append(name)
    widest, top = max(map(len, rows.values())), max(rows)
    return {
        name: (
            _MARGIN + _COLUMN * (widest * (number + 0.5) / len(row)),
            _MARGIN + _BOX_HEIGHT / 2 + _ROW * (top - level),
        )
        for level, row in rows.items()
        for number, name in enumerate(row)
    }


def _links(topology: Topology, places: Mapping[str, tuple[float, float]]) -> list[str]:
    """A line for each link. Parallel links are side by side; links of a row are arcs above it."""
    drawn = []
    seen: dict[frozenset[str], int] = {}
    for link in topology.links:
        pair = frozenset((link.a.node, link.b.node))
        beside = 5 * seen.get(pair, 0)
        seen[pair] = seen.get(pair, 0) + 1
        (x1, y1), (x2, y2) = places[link.a.node], places[link.b.node]
        lift = _ROW / 2 if y1 == y2 else 0
        title = _text(f"{link.a} to {link.b}, {format_rate(link.rate_bps)}")
        way = f"M {x1 + beside:g} {y1:g} Q {(x1 + x2) / 2 + beside:g} {(y1 + y2) / 2 - lift:g} {x2 + beside:g} {y2:g}"
        drawn.append(f'<path d="{way}" fill="none" stroke="#777"><title>{title}</title></path>')
    return drawn


def _nodes(topology: Topology, places: Mapping[str, tuple[float, float]]) -> list[str]:
    """A box for each host and switch."""
    hosts = [
        (host.name, _HOST_COLOUR, ", ".join(f"{nic.name} {nic.address}" for nic in host.nics))
        for host in topology.hosts
    ]
    switches = [
        (switch.name, _OPTICAL_COLOUR if switch.role == "ocs" else _SWITCH_COLOUR, switch.role)
        for switch in topology.switches
    ]
    drawn = []
    for name, colour, title in (*hosts, *switches):
        x, y = places[name]
        box = f'x="{x - _BOX_WIDTH / 2:g}" y="{y - _BOX_HEIGHT / 2:g}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}"'
        fitted = f' textLength="{_BOX_WIDTH - 6}" lengthAdjust="spacingAndGlyphs"' if len(name) > 10 else ""
        drawn.append(
            f'<g><title>{_text(f"{name}: {title}")}</title><rect {box} rx="4" fill="{colour}" stroke="#555"/>'
            f'<text x="{x:g}" y="{y + 4:g}" text-anchor="middle"{fitted}>{_text(name)}</text></g>'
        )
    return drawn


def _text(text: str) -> str:
    return escape(printable(text))
