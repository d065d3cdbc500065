# SPDX-License-Identifier: Apache-2.0
"""The fabric as found, drawn with letters. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from netmodel.probing.paths import FoundPath

_WIDTH = 24
"""Letters of a bar that stands for all ports."""

Name = Callable[[str], str]


def picture(source: str, destination: str, paths: Sequence[FoundPath], name: Name) -> list[str]:
    """A tree of the routers behind `source`, each with a bar as wide as its share of the source ports.

    From where a path is alone, its hops stand in one line. name: what to call the node with this address.
    """
    total = sum(len(path.ports) for path in paths)
    return [name(source), *_branches("", paths, 0, total, destination, name)]


def _branches(
    indent: str, paths: Sequence[FoundPath], hop: int, total: int, destination: str, name: Name
) -> Iterator[str]:
    behind: defaultdict[str | None, list[FoundPath]] = defaultdict(list)
    for path in paths:
        behind[path.hops[hop] if hop < len(path.hops) else None].append(path)
    for number, (router, group) in enumerate(behind.items()):
        last = number == len(behind) - 1
        share = sum(len(path.ports) for path in group) / total
        bar = "#" * max(1, round(share * _WIDTH))
        alone = len(group) == 1
        rest = group[0].hops[hop:] if alone else (router,)
        words = [*("?" if one is None else name(one) for one in rest), *([name(destination)] if alone else ())]
        yield f"{indent}{'`-' if last else '|-'} {' > '.join(words)}  {bar} {share:.0%}"
        if not alone:
            yield from _branches(indent + ("   " if last else "|  "), group, hop + 1, total, destination, name)
