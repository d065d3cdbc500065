# SPDX-License-Identifier: Apache-2.0
"""Which port each lane of a pair gets, so that its lanes take the planned ways and few of them change their port. Pure.

Which lane takes which of the planned ways does not matter, since a pair's bytes are split over all of its lanes alike.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

Way = TypeVar("Way", bound=Hashable)


def lane_ports(
    before: Sequence[int],
    planned: Sequence[Way | None],
    known: Mapping[int, Way],
    doubted: Mapping[int, Way],
    is_alive: Callable[[Way], bool],
) -> list[int]:
    """The port of each lane, in the order of `before`, its ports so far; 0 where no port is left for it.

    `planned` has one way for each lane, None for one that is not known yet. `known` has the way of each port, and
    `doubted` that of ports which may have moved: lanes keep these until they are probed again. Where no port is known
    along a planned way, a lane takes any other, along one that is alive if possible. Asked again with the ports that it
    gave, it gives the same.
    """
    missing = Counter(way for way in planned if way is not None)
    ports = [port if port in doubted else 0 for port in before]
    for ways in (known, doubted):
        for lane, port in enumerate(before):
            way = ways.get(port)
            if way is not None and missing[way] > 0:
                missing[way] -= 1
                ports[lane] = port
    free = dict.fromkeys(port for port in known if port not in ports)
    for way in missing.elements():
        port = next((port for port in free if known[port] == way), 0)
        if port and 0 in ports:
            ports[ports.index(0)] = port
            del free[port]
    for alive in (True, False):
        for lane, port in enumerate(before):  # no lane takes the port of another one that may keep it
            if not ports[lane] and port in free and is_alive(known[port]) == alive:
                ports[lane] = port
                del free[port]
        for lane, port in enumerate(ports):
            other = next((other for other in free if is_alive(known[other]) == alive), 0)
            if not port and other:
                ports[lane] = other
                del free[other]
    return ports
