# SPDX-License-Identifier: Apache-2.0
"""RDMA devices in `paralet doctor`, with a simulated /sys and simulated answers of pyverbs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from testbed.cli import rdma_devices
from testbed.cli.rdma_devices import Gid, RdmaDevice, RdmaPort
from tests.testbed.cli.test_cli import paralet

doctor = importlib.import_module("testbed.cli.doctor")  # the package has the command by that name

RXE = RdmaDevice(
    "rxe0", "rxe", True, (RdmaPort(1, "ACTIVE", 4096, (Gid(0, "fe80::1", "RoCE v2"), Gid(1, "10.0.0.1", "RoCE v2"))),)
)


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rdma_devices, "SYSFS", tmp_path / "infiniband")
    (tmp_path / "infiniband").mkdir()
    return tmp_path / "infiniband"


def test_drivers_are_read_from_sysfs(sysfs: Path) -> None:
    (sysfs.parent / "mlx5_core").mkdir()
    for name in ("mlx5_0", "soft", "odd"):
        (sysfs / name).mkdir()
    (sysfs / "mlx5_0" / "device").mkdir()
    (sysfs / "mlx5_0" / "device" / "driver").symlink_to(sysfs.parent / "mlx5_core")
    (sysfs / "soft" / "parent").write_text("eth0\n")
    assert rdma_devices.names() == ["mlx5_0", "odd", "soft"]
    assert [rdma_devices.driver_of(name) for name in rdma_devices.names()] == ["mlx5_core", "", "rxe"]


def test_support_of_flow_labels_by_driver() -> None:
    assert [rdma_devices.honours_flow_label(driver) for driver in ("mlx5_core", "bnxt_re", "")] == [True, False, None]


@pytest.mark.parametrize(
    ("driver", "release", "honoured"),
    [
        ("rxe", "6.12.95+deb12-amd64", True),
        ("rxe", "5.18.0", True),
        ("rxe", "5.17.15-generic", False),
        ("rxe", "4.19.0", False),
        ("mlx5_core", "4.19.0", True),
        ("bnxt_re", "6.12.0", False),
    ],
)
def test_support_of_flow_labels_depends_on_the_kernel_version(driver: str, release: str, honoured: bool) -> None:
    assert rdma_devices.honours_flow_label(driver, release) is honoured


@pytest.mark.parametrize(
    ("gid", "address"),
    [
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", "10.0.0.1"),
        ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "fe80::ff:fe00:1"),
    ],
)
def test_gids_are_shown_as_ip_addresses(gid: str, address: str) -> None:
    assert rdma_devices.address_of(gid) == address


def test_doctor_shows_driver_flow_label_ports_and_gids(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sysfs / "rxe0").mkdir()
    monkeypatch.setattr(doctor, "find_library", lambda _: "libibverbs.so.1")
    monkeypatch.setattr(rdma_devices, "devices", lambda: [RXE])
    (finding,) = doctor.rdma_findings()
    assert finding.name == "RDMA device rxe0"
    assert finding.detail == (
        "rxe, flow label honoured; port 1 ACTIVE, MTU 4096, GIDs 0 fe80::1 (RoCE v2), 1 10.0.0.1 (RoCE v2)"
    )
    answer = json.loads(paralet("doctor", "--json").stdout)
    assert answer["rdma_devices"][0]["ports"][0]["gids"][1] == {"index": 1, "address": "10.0.0.1", "type": "RoCE v2"}


def test_doctor_says_what_to_install(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_pyverbs() -> list[RdmaDevice]:
        raise ImportError("No module named 'pyverbs'")

    monkeypatch.setattr(rdma_devices, "devices", without_pyverbs)
    monkeypatch.setattr(doctor, "find_library", lambda _: None)
    assert doctor.rdma_findings()[0].remedy == "apt install ibverbs-providers"
    monkeypatch.setattr(doctor, "find_library", lambda _: "libibverbs.so.1")
    assert doctor.rdma_findings()[0].remedy == "make softroce"
    (sysfs / "mlx5_0").mkdir()
    (finding,) = doctor.rdma_findings()
    assert finding.ok
    assert finding.remedy == "apt install python3-pyverbs"


def test_doctor_reports_a_device_that_cannot_be_opened(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing() -> list[RdmaDevice]:
        raise OSError("RDMA device mlx5_0 cannot be queried: Permission denied")

    (sysfs / "mlx5_0").mkdir()
    monkeypatch.setattr(doctor, "find_library", lambda _: "libibverbs.so.1")
    monkeypatch.setattr(rdma_devices, "devices", refusing)
    assert doctor.rdma_findings()[0].detail == "RDMA device mlx5_0 cannot be queried: Permission denied"
