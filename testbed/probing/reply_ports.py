# SPDX-License-Identifier: Apache-2.0
"""Whether routers answer by the port at which a probe came in, or by the port by which their answer leaves. Pure.

Linux does the latter by default (`net.ipv4.icmp_errors_use_inbound_ifaddr=0`). On the way up to the topmost router the
two are the same, if there are no parallel links. On the way down the answer leaves by any of several ports: its address
tells the router, and nothing of the way that the probe took.
"""

from collections import defaultdict
from collections.abc import Mapping


def vague_hops(ways: Mapping[int, Mapping[int, str]], top: int) -> tuple[int, ...]:
    """The hops beyond the topmost one at which answers tell nothing of the way.

    ways: by source port and hop, the address that answered. Where answers name the way, what comes after different
    routers is different: of the addresses that follow one router, some share no address of the next hop. Where all of
    them share theirs, and these are several, either the answers leave by any port, or there was one router with several
    links to both sides, and no other one.
    """
    return tuple(
        ttl
        for ttl in range(top + 1, max((hop for way in ways.values() for hop in way), default=0) + 1)
        if _is_vague(ways, ttl)
    )


def _is_vague(ways: Mapping[int, Mapping[int, str]], ttl: int) -> bool:
    here: defaultdict[str, set[str]] = defaultdict(set)  # by address of the hop before: those of this hop
    after: defaultdict[str, set[str]] = defaultdict(set)  # by address of the hop before that one: those that follow it
    for way in ways.values():
        if ttl - 1 in way and ttl in way:
            here[way[ttl - 1]].add(way[ttl])
            if ttl - 2 in way:
                after[way[ttl - 2]].add(way[ttl - 1])
    several = [followers for followers in after.values() if len(followers) > 1]
    return bool(several) and all(_share(followers, here) for followers in several)


def _share(followers: set[str], here: Mapping[str, set[str]]) -> bool:
    """Whether all of them are joined by what they lead to, and that is more than one address."""
    rest = set(followers)
    reached = set(here[rest.pop()])
    while joined := {one for one in rest if here[one] & reached}:
        rest -= joined
        reached |= set().union(*(here[one] for one in joined))
    return not rest and len(reached) > 1
