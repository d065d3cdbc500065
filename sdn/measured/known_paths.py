# SPDX-License-Identifier: Apache-2.0
"""A plan over the paths that are known for each commodity, on any fabric, which grows as probes find more."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import Generic, TypeVar

import numpy as np

from sdn import _native

Link = TypeVar("Link", bound=Hashable)
Name = TypeVar("Name", bound=Hashable)
"""A commodity's name, chosen by the caller."""

_EFFORT = 2_000  # paths examined per change


class KnownPaths(Generic[Name, Link]):
    """Gives each commodity the least congested of its known paths, and moves single ones off the worst link.

    `rates` has the rate in bit/s of every link, of each direction of its own. A path is the tuple of its links, without
    those of hosts, which no plan can relieve. Congestion is demand over rate.
    """

    def __init__(self, rates: Mapping[Link, float]) -> None:
        self._number = {link: number for number, link in enumerate(rates)}
        self._rates = np.array(list(rates.values()), dtype=np.float64)
        self._plan = _native.ListedPaths(self._rates)
        self._placed: dict[Name, int] = {}
        self._owner: dict[int, Name] = {}
        self._known: dict[Name, list[tuple[Link, ...]]] = {}
        self._listed: dict[Name, list[tuple[Link, ...]]] = {}  # as the plan has them
        self._demand: dict[Name, float] = {}
        self._dead: set[Link] = set()

    @property
    def congestion(self) -> float:
        """That of the worst link."""
        return self._plan.congestion()

    def path(self, name: Name) -> tuple[Link, ...] | None:
        """The path of a commodity; None while none of its known paths is alive. Raises KeyError for an unknown one."""
        if name not in self._known:
            raise KeyError(f"there is no commodity {name!r}")
        placed = self._placed.get(name)
        return None if placed is None else self._listed[name][self._plan.chosen(placed)]

    def arrive(self, name: Name, demand: float, paths: Iterable[tuple[Link, ...]], most_moves: int) -> list[Name]:
        """Adds a commodity that has these paths so far, maybe none. Returns the others that moved to make room.

        Raises ValueError for a name that is taken, and KeyError for a link without a rate.
        """
        if name in self._known:
            raise ValueError(f"there is a commodity {name!r} already")
        self._known[name], self._demand[name] = [], demand
        return [other for other in self.learn(name, paths, most_moves) if other != name]

    def learn(self, name: Name, paths: Iterable[tuple[Link, ...]], most_moves: int) -> list[Name]:
        """More paths of a commodity are known. It takes one of them only where that is less congested.

        Returns the commodities that moved, itself included, at most `most_moves` and itself.
        """
        known = self._known[name]
        fresh = [path for path in dict.fromkeys(paths) if path not in known]
        for link in (link for path in fresh for link in path):
            if link not in self._number:
                raise KeyError(f"link {link} has no rate")
        known += fresh
        if not fresh:
            return []
        return self._replaced([name], most_moves)

    def unlearn(self, name: Name, paths: Iterable[tuple[Link, ...]], most_moves: int) -> list[Name]:
        """Some paths of a commodity are known no more: the ports that took them have moved. Returns what moved."""
        gone, known = set(paths), self._known[name]
        self._known[name] = [path for path in known if path not in gone]
        return self._replaced([name], most_moves) if len(self._known[name]) < len(known) else []

    def depart(self, name: Name, most_moves: int) -> list[Name]:
        """Removes a commodity. Returns the others that moved."""
        self._take(name)
        del self._known[name], self._demand[name]
        return self._improved(most_moves)

    def copied(self) -> "KnownPaths[Name, Link]":
        """A plan of its own, with the same commodities on the same paths."""
        made = copy(self)
        made._plan = _native.ListedPaths(self._rates)
        made._placed, made._owner = {}, {}
        made._known = {name: list(paths) for name, paths in self._known.items()}
        made._listed, made._demand, made._dead = dict(self._listed), dict(self._demand), set(self._dead)
        for name, placed in self._placed.items():
            paths = [[self._number[link] for link in path] for path in self._listed[name]]
            again = made._plan.insert(self._demand[name], paths, self._plan.chosen(placed))
            made._placed[name], made._owner[again] = again, name
        return made

    def cut(self, links: Iterable[Link], most_moves: int) -> list[Name]:
        """Links have died: commodities leave the paths over them. Returns those that moved."""
        dead = set(links)
        self._dead |= dead
        return self._replaced([name for name, paths in self._known.items() if _cross(paths, dead)], most_moves)

    def mend(self, links: Iterable[Link], most_moves: int) -> list[Name]:
        """Links are back. Returns the commodities that moved."""
        back = set(links)
        self._dead -= back
        return self._replaced([name for name, paths in self._known.items() if _cross(paths, back)], most_moves)

    def _replaced(self, names: Sequence[Name], most_moves: int) -> list[Name]:
        """Lists the paths of these commodities anew, and lets them move where that is better."""
        if not names:
            return []
        moved: dict[Name, None] = {}
        for name in names:
            before = self.path(name)
            self._take(name)
            alive = [path for path in self._known[name] if self._dead.isdisjoint(path)]
            if before in alive:  # the first of equal ones is taken
                alive.insert(0, alive.pop(alive.index(before)))
            if alive:
                paths = [[self._number[link] for link in path] for path in alive]
                placed = self._plan.insert(self._demand[name], paths)
                self._placed[name], self._owner[placed], self._listed[name] = placed, name, alive
            if self.path(name) != before:
                moved[name] = None
        return list(moved | dict.fromkeys(self._improved(most_moves)))

    def _improved(self, most_moves: int) -> list[Name]:
        return [self._owner[placed] for placed in self._plan.improve(0.0, most_moves, _EFFORT)]

    def _take(self, name: Name) -> None:
        placed = self._placed.pop(name, None)
        if placed is not None:
            self._plan.remove(placed)
            del self._owner[placed], self._listed[name]


def _cross(paths: Iterable[tuple[Link, ...]], links: set[Link]) -> bool:
    return any(not links.isdisjoint(path) for path in paths)
