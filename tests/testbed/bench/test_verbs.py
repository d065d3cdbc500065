# SPDX-License-Identifier: Apache-2.0
"""`paralet bench verbs` without an RDMA device; tests/softroce/interop/test_bench.py has the kernel's."""

from __future__ import annotations

import pytest

from hostlib import DeviceError
from testbed.bench import verbs
from testbed.errors import InputError, TestbedError


def test_without_an_rdma_device_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "local_interfaces", lambda: [("eth0", "10.0.0.1", 1500), ("eth1", "10.1.0.1", 1500)])

    def refuse(address: str, **_: object) -> None:
        raise DeviceError(f"no RDMA device has the address {address}")

    monkeypatch.setattr(verbs, "Device", refuse)
    with pytest.raises(InputError, match=r"use no address of this machine: no RDMA device .* 10\.1\.0\.1"):
        verbs.measure()


def test_a_failure_of_the_device_is_an_error_of_the_bench() -> None:
    with pytest.raises(TestbedError, match=r"a device failed: no interface .* has the address 192\.0\.2\.99"):
        verbs._alone(verbs.set_up, "192.0.2.99", "soft", 1, 1)


def test_a_set_up_is_measured_by_peer_and_lane() -> None:
    took = verbs._alone(verbs.set_up, "127.0.0.1", "soft", 4, 3)
    assert took.connect_s > 0
    assert took.resident_bytes > 0
    assert took.pinned_bytes == 0  # sockets need none
