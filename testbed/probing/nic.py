# SPDX-License-Identifier: Apache-2.0
"""What an RDMA device at the probed address means for probes, which the kernel sends: from sysfs."""

from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

SYSFS = Path("/sys/class")


def remarks_on(address: str, sysfs: Path = SYSFS) -> Iterator[str]:
    """What to know where a NIC may send data by another way than the kernel's probes, a sentence each."""
    for device, interface in _devices(address, sysfs):
        own = sysfs / "net" / interface
        if any((one / "bonding").is_dir() for one in (own, *own.glob("lower_*"))):  # itself, or under a VLAN
            yield (
                f"{address} is on the bond {interface} of RDMA device {device}: the kernel sends these probes by one "
                "port of it, and the device the data of a queue pair perhaps by another, so the paths found hold for "
                "the back ends soft and tcp only; to pin those of verbs, give each port an address without the bond"
            )


def _devices(address: str, sysfs: Path) -> Iterator[tuple[str, str]]:
    """The RDMA devices that have a RoCE v2 GID of the address, with the interface of each."""
    for entry in sorted((sysfs / "infiniband").glob("*/ports/*/gids/*")):
        port, index = entry.parents[1], entry.name
        try:
            gid = IPv6Address(entry.read_text().strip())
            kind = (port / "gid_attrs" / "types" / index).read_text().strip()
            interface = (port / "gid_attrs" / "ndevs" / index).read_text().strip()
        except (OSError, ValueError):  # an empty entry of the table
            continue
        if kind == "RoCE v2" and (gid.ipv4_mapped or gid) == ip_address(address):
            yield port.parents[1].name, interface
