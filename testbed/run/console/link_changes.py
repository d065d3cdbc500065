# SPDX-License-Identifier: Apache-2.0
"""What the words of the command `link` ask for."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from netmodel import Link, PortRef, Topology
from testbed.errors import InputError
from testbed.quantities import Share
from testbed.run.console.fabric import node_names
from testbed.spec import LinkSettings

USAGE = "link PORT|NODE NODE up|down|rate SHARE|clear|SETTING VALUE.."

_SETTINGS = tuple(LinkSettings.model_fields)


@dataclass(frozen=True, slots=True)
class LinkChange:
    """One change of some links, or of what happens to packets that leave by some ports. The other fields are None."""

    links: tuple[Link, ...]
    ports: tuple[PortRef, ...]
    up: bool | None = None
    part: float | None = None
    settings: LinkSettings | None = None

    @property
    def what(self) -> str:
        """The change in words, for messages."""
        where = ", ".join(str(link.a) for link in self.links)
        if self.up is not None:
            return f"{'mend' if self.up else 'cut'} {where}"
        if self.part is not None:
            return f"degrade {where} to {self.part:g}"
        assert self.settings is not None
        return f"set {', '.join(map(str, self.ports))} to {self.settings.what}"


def change_of(topology: Topology, words: Sequence[str]) -> LinkChange:
    """What `words` say, which name a port, or two nodes and so all links between them. Raises InputError."""
    links, ports, rest = _target(topology, words)
    match rest:
        case ["up" | "down" as state]:
            return LinkChange(links, ports, up=state == "up")
        case ["clear"]:
            return LinkChange(links, ports, settings=LinkSettings())
        case ["rate", *share] if share:
            return LinkChange(links, ports, part=_part(" ".join(share)))
        case [key, *_] if key in _SETTINGS:
            return LinkChange(links, ports, settings=_settings(rest))
    raise InputError(f"usage: {USAGE}, where SETTING is one of {', '.join(_SETTINGS)}")


def port_of(topology: Topology, word: str) -> PortRef:
    """The linked port that a word names, such as `leaf1:5`. Raises InputError."""
    try:
        port = PortRef.parse(word)
        topology.link_at(port)
    except (ValueError, KeyError) as error:
        raise InputError(str(error.args[0])) from None
    return port


def node_of(topology: Topology, word: str) -> str:
    """The host or switch that a word names. Raises InputError."""
    if word not in node_names(topology):
        raise InputError(f"topology {topology.name!r} has no host or switch {word!r}")
    return word


def _target(topology: Topology, words: Sequence[str]) -> tuple[tuple[Link, ...], tuple[PortRef, ...], list[str]]:
    """The links and ports that the first words name, and the other words.

    A port stands for its link, or for packets that leave by it; two nodes for all their links, or for both directions.
    """
    if words and ":" in words[0]:
        port = port_of(topology, words[0])
        return (topology.link_at(port),), (port,), list(words[1:])
    if len(words) < 2:
        raise InputError(f"usage: {USAGE}")
    ends = {node_of(topology, word) for word in words[:2]}
    links = tuple(link for link in topology.links if {link.a.node, link.b.node} == ends)
    if not links:
        raise InputError(f"no link joins {words[0]} and {words[1]}")
    return links, tuple(port for link in links for port in (link.a, link.b)), list(words[2:])


def _part(text: str) -> float:
    try:
        part = TypeAdapter(Share).validate_python(text if "%" in text else float(text))
    except (ValidationError, ValueError):
        part = 0.0
    if not part:
        raise InputError(f"{text!r} is not a part of a rate: write it like '25 %' or 0.25, up to 100 %")
    return part


def _settings(words: Sequence[str]) -> LinkSettings:
    """The settings of `loss 5 % delay 2 ms`: each value goes until the next name of a setting."""
    values: dict[str, str] = {}
    for word in words:
        if word in _SETTINGS:
            key = word
            values[key] = ""
        else:
            values[key] = f"{values[key]} {word}".strip()
    try:
        return LinkSettings.model_validate({key: _number(value) for key, value in values.items()})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{where}: {said}" if where else said) from None


def _number(text: str) -> str | float:
    """Text as YAML has it: a number where it is one."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text
