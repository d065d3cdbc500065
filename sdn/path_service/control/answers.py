# SPDX-License-Identifier: Apache-2.0
"""The answers to operators' changes. Their JSON Schema is in `sdn/path_service/operator_schema.json`.

An elephant here is a commodity: all elephants from one device to one peer.
"""

from msgspec import Struct

from sdn.path_service.control.book import Change


class Move(Struct, frozen=True):
    """An elephant that changes its path. Paths are one, or one for each lane; none where its ports are random."""

    device: str
    peer: str
    job: str
    before: list[list[str]]
    """The port by which each path leaves each node, from the host on."""
    after: list[list[str]]


class WorstLink(Struct, frozen=True):
    """The link with most elephants for its rate, and their number in its busier direction."""

    link: str
    elephants: float
    rate_bps: float


class Slowed(Struct, frozen=True):
    """A job whose slowest elephant gets slower by this factor, by max-min fair rates; null: it has no path."""

    job: str
    slow_down: float | None


class Effects(Struct, frozen=True):
    """What a change does, or would do."""

    elephants: int
    """All of them, moved or not."""
    moved: int
    moves: list[Move]
    """The first 1,000."""
    without_path: int
    """Elephants for which no path is left: their ports are random."""
    worst_before: WorstLink | None
    worst_after: WorstLink | None
    jobs: list[Slowed]


class Changed(Struct, frozen=True):
    """The answer to a change: null where nothing had to change, or with `dry_run`."""

    change: Change | None
    effects: Effects
    without_effect: list[str]
    """The pins that are asked for and have no effect yet, and those that lose it by this change, in sentences.

    A pin has none while all paths with what it asks for are dead or drained.
    """


class Changes(Struct, frozen=True):
    """The answer to `changes`."""

    generation: int
    last: int
    """The number of the last change."""
    changes: list[Change]


class Reloaded(Struct, frozen=True):
    """The answer to `reload`: what has changed."""

    topology: bool
    token: bool
    hosts: int
    """Of the topology, connected or not."""
    without_effect: list[str]
    """Sentences about drains, pins and dead links that the topology does not have."""
    options: bool = False


class DrainState(Struct, frozen=True):
    """A drain: the elephants that still are on its links, and whether it is empty."""

    what: str
    links: int
    elephants: float
    random: int
    """Elephants on random ports, which may be on any link: those of hosts or peers that the service cannot place."""
    empty: bool
    """No elephant with assigned ports is on its links, and all hosts were told."""
    until: float | None


class PinState(Struct, frozen=True):
    """A pin by hand."""

    src: str
    dst: str
    via: list[str]
    until: float | None


class ControlState(Struct, frozen=True):
    """What operators have asked for: the part `control` of the answer to `status`."""

    generation: int
    last: int
    drains: list[DrainState]
    pins: list[PinState]
    without_effect: list[str]
    """Sentences about what the topology does not have."""
    unwritten: int
    """Changes of dead links that the store could not take yet."""
