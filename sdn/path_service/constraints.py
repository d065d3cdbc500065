# SPDX-License-Identifier: Apache-2.0
"""What limits the paths of elephants beside a plan: links that are dead or drained, and paths pinned by hand. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from netmodel import Link

PinnedPair: TypeAlias = tuple[str, str]
"""The addresses of the NICs of a sender and of its peer."""
Via: TypeAlias = tuple[frozenset[Link], ...]
"""A path has a link of each of these sets."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """The whole of what holds at one time; a change replaces it."""

    dead: frozenset[Link] = frozenset()
    """Links that carry nothing: switches do not hash over them."""
    drained: frozenset[Link] = frozenset()
    """Links that work, and that elephants leave and avoid. Switches still hash over them."""
    pins: Mapping[PinnedPair, Via] = field(default_factory=dict)
    """Pairs whose elephants take a path with these links, as long as there is one that is neither dead nor drained."""

    @property
    def avoided(self) -> frozenset[Link]:
        """Links that no elephant is planned over."""
        return self.dead | self.drained

    def links(self) -> Iterator[Link]:
        """All links that it names, some of them several times."""
        yield from self.avoided
        for via in self.pins.values():
            for some in via:
                yield from some
