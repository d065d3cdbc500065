# SPDX-License-Identifier: Apache-2.0
"""Options of a device from `PARALET_*` variables.

The engine reads and checks them (hostlib/native/src/settings), for the NCCL net plugin as for every other program:
`paralet plugin --parameters` lists them.
"""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from hostlib import _engine
from hostlib.device import Faults
from netmodel.printable import printable

_log = logging.getLogger(__name__)

__all__ = ["Parameters", "names", "read_parameters"]

_FAULT = "faults."


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the variables say. `options` are keyword arguments of `hostlib.Device`."""

    options: dict[str, Any] = field(default_factory=dict)
    automatic_backend: bool = True
    """PARALET_BACKEND=auto, the default: `device_options` chooses the back end, which `options` do not name."""
    addresses: tuple[str, ...] = ()
    """Local addresses to use, of PARALET_ADDRESSES."""
    interfaces: str = ""
    """Value of PARALET_IFNAME: prefixes of names, after ``=`` exact names, after ``^`` prefixes to leave out."""

    def device_options(self, address: str) -> dict[str, Any]:
        """Keyword arguments of a `hostlib.Device` at this address.

        With PARALET_BACKEND=auto they name ``verbs`` where the address is that of an active RoCE port, else ``tcp``.
        The logger of this module notes the choice, and why, at level INFO.
        """
        if not self.automatic_backend:
            return self.options
        chosen, why = _engine.choose_backend(address)
        _log.info("%s", printable(why))
        return {**self.options, "backend": chosen}

    def candidates(self, local: Sequence[tuple[str, str, int]] | None = None, family: int | None = None) -> list[str]:
        """Addresses that may be used, of `local` (name, address, MTU; default: this network namespace's interfaces).

        The order is that of PARALET_ADDRESSES, or of the interfaces that are up, each with the address that reaches
        farthest (docs/plugin.md). With neither variable, these are the addresses of all interfaces but those of Docker,
        loopback and libvirt, or, where there is no other, these. `family`, 4 or 6, is the version of IP that they have
        where an interface offers it. Raises ValueError when a variable is set and fits no interface.
        """
        rather_ipv4 = None if family is None else family == 4
        found = _engine.choose_addresses(local, self.addresses, self.interfaces, rather_ipv4)
        if found:
            return found
        for address in self.addresses:
            if not _engine.choose_addresses(local, [address], "", None):
                raise ValueError(f"no network interface that is up has the address {address} of PARALET_ADDRESSES")
        chosen = f"fits PARALET_IFNAME={self.interfaces}" if self.interfaces else "was found"
        raise ValueError(f"no network interface that is up and has an IP address {chosen}")

    def address(self, peer: str | None = None, index: int = 0) -> str:
        """The address for a process.

        With PARALET_ADDRESSES or PARALET_IFNAME it is number `index` of the candidates, modulo their number: so the
        processes of a host spread over its NICs. Without, it is the address that the kernel would use towards the host
        `peer`, or the first candidate if `peer` is None or has no address. The family is that of the way to `peer`.
        The logger of this module notes the choice at level INFO. Raises ValueError as `candidates` does.
        """
        towards = _towards(peer) if peer else None
        if towards is not None and not self.addresses and not self.interfaces:
            _log.info("%s", printable(f"address {towards}: it is on the way to {peer}"))
            return towards
        found = self.candidates(family=None if towards is None else ip_address(towards).version)
        chosen = found[index % len(found)]
        _log.info("%s", printable(f"address {chosen}, number {index % len(found)} of {', '.join(found)}"))
        return chosen


def names() -> list[str]:
    """All variables that `read_parameters` knows."""
    return _engine.parameters()


def read_parameters(environment: Mapping[str, str]) -> Parameters:
    """Read the variables, and the file that PARALET_CONFIG names, which they override. An empty one counts as not set.

    PARALET_RAILS is checked and has no effect: only NCCL's search of rings has a use for it. Warns about a name that is
    nearly one of these. Raises ValueError with a sentence that names the variable, its value and what is allowed.
    """
    own = {name: value for name, value in environment.items() if name.startswith("PARALET_")}
    read = _engine.read_parameters({name.encode(errors="replace"): own[name].encode(errors="replace") for name in own})
    for sentence in read["advice"]:
        warnings.warn(printable(sentence), stacklevel=2)
    given = read["options"]
    options = {name: value for name, value in given.items() if not name.startswith(_FAULT)}
    if faults := {name.removeprefix(_FAULT): value for name, value in given.items() if name.startswith(_FAULT)}:
        options["faults"] = Faults(**faults)
    return Parameters(options, read["automatic_backend"], tuple(read["addresses"]), read["interfaces"])


def _towards(peer: str) -> str | None:
    """The address of this host that the kernel would use towards a host; None without one that a device can have."""
    try:
        found = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None  # a name that does not resolve
    for family, kind, _, _, address in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # sends nothing
                own = str(probe.getsockname()[0])
        except OSError:
            continue  # no route, or a family that this host has not
        if not ip_address(own).is_link_local or ip_address(own).version == 4:
            return own
    return None
