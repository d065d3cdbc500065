# SPDX-License-Identifier: Apache-2.0
"""Advice of `paralet doctor` on NICs, on trees like /sys and /proc."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from testbed.cli.nic_checks import nic_findings

ADDRESS = "127.0.0.77"


@pytest.fixture
def nic(tmp_path: Path) -> Path:
    """An mlx5 NIC with a RoCEv2 GID for ADDRESS."""
    device = tmp_path / "class/infiniband/mlx5_0"
    for index, (gid, kind) in enumerate(
        [
            ("0000:0000:0000:0000:0000:ffff:7f00:004d", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:7f00:004d", "RoCE v2"),
            ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"),
        ]
    ):
        write(device / f"ports/1/gids/{index}", gid)
        write(device / f"ports/1/gid_attrs/types/{index}", kind)
    (device / "device/net/eth7").mkdir(parents=True)
    return device


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def details(sysfs: Path) -> dict[str, str]:
    found = nic_findings([ADDRESS], sysfs=sysfs, proc=sysfs)
    assert all(finding.ok for finding in found)
    return {finding.name: finding.detail for finding in found}


def test_without_a_nic_only_the_port_is_examined(tmp_path: Path) -> None:
    assert details(tmp_path) == {"UDP port 4791": "free on every address"}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((ADDRESS, 4791))
        assert "another program has it" in details(tmp_path)["UDP port 4791"]


def test_a_nic_that_takes_the_port_is_named(nic: Path, tmp_path: Path) -> None:
    assert f"{ADDRESS}: mlx5_0 receives it in hardware" in details(tmp_path)["UDP port 4791"]
    write(nic / "parent", "eth7")  # a software device
    assert details(tmp_path) == {"UDP port 4791": "free on every address"}


def test_the_limit_of_locked_memory_is_told(nic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    assert details(tmp_path)["locked memory"].startswith("optional: at most 8192 KiB")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert details(tmp_path)["locked memory"] == "unlimited"


def test_gpu_memory_needs_a_module(nic: Path, tmp_path: Path) -> None:
    assert "GPU memory" not in details(tmp_path)
    write(tmp_path / "driver/nvidia/gpus/0000:01:00.0/information", "Model: a GPU")
    assert "not loaded" in details(tmp_path)["GPU memory"]
    write(tmp_path / "module/nvidia_peermem/version", "1")
    assert details(tmp_path)["GPU memory"] == "nvidia_peermem is loaded"


def test_congestion_control_is_told_where_the_driver_shows_it(nic: Path, tmp_path: Path) -> None:
    assert "the driver of eth7 does not tell" in details(tmp_path)["congestion control of mlx5_0"]
    for priority in range(3):
        write(nic / f"device/net/eth7/ecn/roce_np/enable/{priority}", str(int(priority == 2)))
        write(nic / f"device/net/eth7/ecn/roce_rp/enable/{priority}", "0")
    assert "np on for priorities 2 and rp on for priorities none" in details(tmp_path)["congestion control of mlx5_0"]
