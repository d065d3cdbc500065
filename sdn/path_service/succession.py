# SPDX-License-Identifier: Apache-2.0
"""A path service takes over the hosts and elephants of another one, which had another topology. Pure.

Elephants keep their paths where the new topology has them. Hosts are told of nothing but ports that have changed.
"""

from typing import Literal

from netmodel import IPPROTO_TCP
from sdn.path_service.constraints import Constraints
from sdn.path_service.messages import Announce, Hello
from sdn.path_service.next_hops import NextHops
from sdn.path_service.parties import Client
from sdn.path_service.pinning import Sends
from sdn.path_service.service import PathService


class SuccessionError(ValueError):
    """A service cannot take over from another one: one sentence."""


def take_over(
    now_s: float, old: PathService, new: PathService, constraints: Constraints, next_hops: NextHops | None = None
) -> Sends:
    """Gives a new service what an old one has, which then must not be used any more. Returns what hosts are told.

    `constraints` are those of the new topology, and `next_hops` those of its switches, if they were read.

    Raises SuccessionError, with the old service as it was, where paths are measured, and where the new topology lacks a
    device that is connected.
    """
    if old.offers_probes or new.offers_probes:
        raise SuccessionError(
            "with measured paths the topology is that of the probes: start the service anew to change it"
        )
    for client in old.clients:
        if not new.knows(client.key[0]):
            raise SuccessionError(f"{client.key[0]} is connected, and is not in the new topology")
    if next_hops is not None:
        new.next_hops(now_s, next_hops)
    new.constrain(now_s, constraints)  # also where links have died, or have come back, since switches were read
    for client in old.clients:
        new.connect(now_s, client.conn, _hello(client))
    while new.busy:  # rings of ranks come before their connections, as they did
        new.tick(now_s)
    for client in old.clients:
        new.handle(now_s, client.conn, [*_announcements(client)])
    new.counts.clear()
    new.counts.update(old.counts)
    return new.continue_from(old)


def _hello(client: Client) -> Hello:
    device, port, protocol = client.endpoint.at
    named: Literal["udp", "tcp"] = "tcp" if protocol == IPPROTO_TCP else "udp"
    return Hello(
        1,
        "-",
        device,
        client.key[1],
        client.lanes,
        port,
        named,
        client.fixed,
        client.wants_paths,
        job=client.job,
        rank=client.rank,
        ranks=client.ranks,
    )


def _announcements(client: Client) -> list[Announce]:
    return [
        Announce(
            number,
            pair.peer.at[0],
            size,
            pair.job,
            None,
            pair.peer.at[1],
            pair.ports[-1] if client.fixed and pair.ports else None,
        )
        for number, (pair, size) in client.open.items()
    ]
