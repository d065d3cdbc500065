# SPDX-License-Identifier: Apache-2.0
"""What an RDMA device at the probed address means, from a folder like sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.probing.nic import remarks_on


def device(sysfs: Path, gid: str, kind: str = "RoCE v2", interface: str = "bond0") -> None:
    port = sysfs / "infiniband" / "mlx5_bond_0" / "ports" / "1"
    for folder, text in (("gids", gid), ("gid_attrs/types", kind), ("gid_attrs/ndevs", interface)):
        (port / folder).mkdir(parents=True, exist_ok=True)
        (port / folder / "3").write_text(f"{text}\n")
    (sysfs / "net" / "bond0" / "bonding").mkdir(parents=True, exist_ok=True)
    (sysfs / "net" / "eth0").mkdir(parents=True, exist_ok=True)


@pytest.mark.parametrize(
    ("gid", "address"),
    [("0000:0000:0000:0000:0000:ffff:0a00:0001", "10.0.0.1"), ("fd00:0000:0000:0000:0000:0000:0000:0001", "fd00::1")],
)
def test_a_bond_may_send_data_by_another_port_than_probes(gid: str, address: str, tmp_path: Path) -> None:
    device(tmp_path, gid)
    (said,) = remarks_on(address, tmp_path)
    assert said.startswith(f"{address} is on the bond bond0 of RDMA device mlx5_bond_0")
    assert "give each port an address without the bond" in said


@pytest.mark.parametrize("changes", [{"interface": "eth0"}, {"kind": "IB/RoCE v1"}, {"gid": "fd00::2"}])
def test_other_devices_and_addresses_need_no_remark(changes: dict[str, str], tmp_path: Path) -> None:
    device(tmp_path, **{"gid": "fd00::1", **changes})
    assert not list(remarks_on("fd00::1", tmp_path))


def test_a_vlan_on_a_bond_is_on_the_bond(tmp_path: Path) -> None:
    device(tmp_path, "fd00::1", interface="bond0.7")
    (tmp_path / "net" / "bond0.7").mkdir()
    (tmp_path / "net" / "bond0.7" / "lower_bond0").symlink_to(tmp_path / "net" / "bond0")
    (said,) = remarks_on("fd00::1", tmp_path)
    assert "on the bond bond0.7" in said


def test_a_machine_without_rdma_devices_needs_none(tmp_path: Path) -> None:
    assert not list(remarks_on("10.0.0.1", tmp_path))
