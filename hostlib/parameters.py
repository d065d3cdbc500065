# SPDX-License-Identifier: Apache-2.0
"""Options of a device from `PARALET_*` variables, in the same text forms as the NCCL net plugin reads them.

Names, types, bounds and defaults come from the engine's table of options (hostlib/native/src/engine/options.cpp), so
the variables of `paralet plugin --parameters` hold for every program.
"""

from __future__ import annotations

import difflib
import logging
import re
import socket
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from hostlib import _engine
from hostlib.device import Faults, local_interfaces
from netmodel.printable import printable

_log = logging.getLogger(__name__)

__all__ = ["PLUGIN_ONLY", "Parameters", "names", "read_parameters"]

PLUGIN_ONLY = frozenset({"PARALET_RAILS"})
"""Variables that only NCCL's search of rings has a use for. They are accepted and have no effect here."""

_SELECTING = ("PARALET_CONFIG", "PARALET_IFNAME", "PARALET_ADDRESSES")
_MAX_FILE_BYTES = 2**20
_BYTES = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_RATES = {"": 1.0, "bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_QUANTITY = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|-?\.[0-9]+)\s*([A-Za-z/]*)\s*")


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the variables say. `options` are keyword arguments of `hostlib.Device`."""

    options: dict[str, Any] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    """Local addresses to use, of PARALET_ADDRESSES."""
    interfaces: str = ""
    """Value of PARALET_IFNAME: prefixes of names, after ``=`` exact names, after ``^`` prefixes to leave out."""

    def candidates(self, local: Sequence[tuple[str, str, int]] | None = None, family: int | None = None) -> list[str]:
        """Addresses that may be used, of `local` (name, address, MTU; default: this network namespace's interfaces).

        The order is that of PARALET_ADDRESSES, or of the interfaces, each with the address that reaches farthest
        (docs/plugin.md). With neither variable, these are the addresses of all interfaces but those of Docker,
        loopback and libvirt, or, where there is no other, these. `family`, 4 or 6, is the version of IP that they have
        where an interface offers it. Raises ValueError when a variable is set and fits no interface.
        """
        local = local_interfaces() if local is None else local
        if self.addresses:
            owned = {address for _, address, _ in local}
            for address in self.addresses:
                if address not in owned and not ip_address(address).is_loopback:
                    raise ValueError(f"no network interface has the address {address} of PARALET_ADDRESSES")
            return list(self.addresses)
        if self.interfaces:
            found = _admitted(local, self.interfaces, family)
            if not found:
                raise ValueError(f"no network interface with an IP address fits PARALET_IFNAME={self.interfaces}")
            return found
        for names_ in ("^docker,lo,virbr", "docker", "lo", "virbr"):
            if found := _admitted(local, names_, family):
                return found
        raise ValueError("this machine has no network interface with an IP address")

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
    return [*_SELECTING, *sorted(PLUGIN_ONLY), *_options(), "PARALET_FAULTS"]


def read_parameters(environment: Mapping[str, str]) -> Parameters:
    """Read the variables, and the file that PARALET_CONFIG names, which they override. An empty one counts as not set.

    Warns about a name that is nearly one of these. Raises ValueError with a sentence that names the variable, its value
    and what is allowed.
    """
    _refuse_former("", (name for name, value in environment.items() if value))
    known = names()
    given = {name: (environment[name], "") for name in known if environment.get(name)}
    for name in environment:
        if (
            name.startswith("PARALET_")
            and name not in known
            and (near := difflib.get_close_matches(name, known, 1, 0.9))
        ):
            warnings.warn(printable(f"{name} is not a parameter and is ignored: did you mean {near[0]}?"), stacklevel=2)
    if "PARALET_CONFIG" in given:
        given = _read_file(given["PARALET_CONFIG"][0], known) | given
    if "PARALET_IFNAME" in given and "PARALET_ADDRESSES" in given:
        raise ValueError("PARALET_IFNAME and PARALET_ADDRESSES exclude each other: set one of them")
    options: dict[str, Any] = {}
    for variable, option in _options().items():
        if variable in given:
            text, where = given[variable]
            try:
                value = _parse(option["type"], text)
                _engine.check_option(option["name"], value)
            except (ValueError, TypeError, _engine.DeviceError) as error:
                raise _refused(where, variable, text, option["allowed"]) from error
            options[option["name"]] = value
    if "PARALET_FAULTS" in given:
        text, where = given["PARALET_FAULTS"]
        try:
            options["faults"] = _faults(text)
        except (ValueError, TypeError) as error:
            raise _refused(where, "PARALET_FAULTS", text, "entries such as drop=0.01,seed=7") from error
    text, where = given.get("PARALET_ADDRESSES", ("", ""))
    try:
        addresses = tuple(str(ip_address(word.strip())) for word in text.split(",") if word.strip())
    except ValueError as error:
        raise _refused(where, "PARALET_ADDRESSES", text, "IP addresses separated by commas") from error
    return Parameters(options, addresses, given.get("PARALET_IFNAME", ("", ""))[0])


def _options() -> dict[str, dict[str, Any]]:
    return {option["variable"]: option for option in _engine.options() if option["variable"]}


def _refuse_former(where: str, given: Iterable[str]) -> None:
    renamed = {option["former"]: variable for variable, option in _options().items() if option["former"]}
    for name in given:
        if name in renamed:
            raise ValueError(f"{where}{name} is now named {renamed[name]}: set that instead")


def _refused(where: str, name: str, text: str, allowed: str) -> ValueError:
    return ValueError(f"{where}{name}='{text}' is not allowed: it must be {allowed}")


def _read_file(path: str, known: Sequence[str]) -> dict[str, tuple[str, str]]:
    out: dict[str, tuple[str, str]] = {}
    for where, line in _lines(path):
        name, equals, value = (word.strip() for word in line.partition("="))
        if not equals:
            raise ValueError(f"{where}'{line}' is not NAME=value")
        _refuse_former(where, [name])
        if name not in known or name == "PARALET_CONFIG":
            raise ValueError(f"{where}{name} is not a parameter: `paralet plugin --parameters` lists them all")
        if name in out:
            raise ValueError(f"{where}{name} is set twice")
        out[name] = (value, where)
    return out


def _lines(path: str) -> list[tuple[str, str]]:
    """Place and text of every line that is not empty; ``#`` begins a comment. Raises ValueError."""
    try:
        data = Path(path).read_bytes()
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError(f"the file {path} is longer than 1 MiB")
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file {path} cannot be read") from error
    lines = [line.partition("#")[0].strip() for line in text.split("\n")]
    return [(f"{path}:{number}: ", line) for number, line in enumerate(lines, 1) if line]


def _parse(kind: str, text: str) -> Any:
    """The value of a text, of the type that the engine's table names. Raises ValueError."""
    if kind == "integer":
        if not re.fullmatch(r"\s*[0-9]+\s*", text):
            raise ValueError("not an integer")
        return int(text)
    if kind == "bytes":
        size = _quantity(text, _BYTES)
        if size != int(size):
            raise ValueError("not a whole number of bytes")
        return int(size)
    parsers: dict[str, Callable[[str], Any]] = {
        "number": lambda text: _quantity(text, {"": 1.0}),
        "bits per second": lambda text: _quantity(text, _RATES),
        "seconds": lambda text: 0.0 if text.strip() == "0" else _quantity(text, _TIMES),
        "choice": str.strip,
        "text": str.strip,
        "ports": _ports,
    }
    return parsers[kind](text)


def _quantity(text: str, units: Mapping[str, float]) -> float:
    found = _QUANTITY.fullmatch(text)
    if found is None or found[2] not in units:
        raise ValueError("not a number with a unit")
    return float(found[1]) * units[found[2]]


def _ports(text: str) -> dict[str, list[int]]:
    """``10.0.0.2=50000,50001; 10.0.0.3=50010``, or a file with one such entry per line."""
    entries = [line for _, line in _lines(text)] if text.startswith(("/", ".")) else text.split(";")
    table: dict[str, list[int]] = {}
    for entry in filter(None, map(str.strip, entries)):
        peer, _, ports = entry.partition("=")
        address = str(ip_address(peer.strip()))
        if address in table:
            raise ValueError(f"{address} has two lists of ports")
        table[address] = [int(port) for port in re.split(r"[,\s]+", ports.strip())]
    if not table:
        raise ValueError("no entry")
    return table


def _faults(text: str) -> Faults:
    integers = {"reorder_packets", "dead_after", "seed"}
    values: dict[str, Any] = {}
    for entry in text.split(","):
        name, _, value = (word.strip() for word in entry.partition("="))
        values[name] = int(value) if name in integers else float(value)
    return Faults(**values)


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


def _scope(address: str) -> int:
    """How far packets to an address come: 0 for everywhere, 1 for its link, 2 for its host."""
    parsed = ip_address(address)
    return 2 if parsed.is_loopback else int(parsed.is_link_local)


def _admitted(local: Sequence[tuple[str, str, int]], names_: str, family: int | None = None) -> list[str]:
    """Of every interface that a filter admits the address that reaches farthest. ``eth0:1`` is one of eth0.

    All have one family: `family` where there is such an address, else that of the address that reaches farthest, IPv4
    before IPv6.
    """
    exclude, names_ = names_.startswith("^"), names_.removeprefix("^")
    exact, names_ = names_.startswith("="), names_.removeprefix("=")
    listed = [word.partition(":")[0] for word in names_.split(",") if word.partition(":")[0]]
    admitted = []
    for label, address, _ in local:
        name = label.partition(":")[0]
        matches = name in listed if exact else any(name.startswith(word) for word in listed)
        if matches != exclude:
            admitted.append((name, address))
    versions = {ip_address(address).version for _, address in admitted}
    if family not in versions:
        farthest = min((address for _, address in admitted), key=_reach, default=None)
        family = None if farthest is None else ip_address(farthest).version
    out: dict[str, str] = {}
    for name, address in admitted:
        if ip_address(address).version == family:
            out[name] = min(out.get(name, address), address, key=_scope)  # of equals the first
    return list(out.values())


def _reach(address: str) -> tuple[int, int]:
    return _scope(address), ip_address(address).version
