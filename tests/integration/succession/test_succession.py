# SPDX-License-Identifier: Apache-2.0
"""Fabrics one after the other in one sandbox."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from emul import MininetFabric
from emul.ovs import OvsError, kernel_datapath_present
from netmodel import leaf_spine
from tests.integration.traffic import PORT, address, receiver, sender

pytestmark = pytest.mark.sandboxed


def test_a_second_fabric_in_the_same_sandbox_works_and_commands_of_the_first_ended(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with MininetFabric(leaf_spine(2, 1, 1, 10_000_000), log_dir=tmp_path / name) as small:
            lasting = small.popen("h1", ["sleep", "1000"])
            into, out = receiver(small, "h2"), sender(small, "h1")
            out.sendto(b"x", (str(address(small, "h2")), PORT))
            assert into.recv(10) == b"x"
            into.close()
            out.close()
        assert lasting.returncode == -signal.SIGKILL
        assert Path("/sys/class/net").joinpath("leaf1-eth1").exists() is False


def test_a_second_fabric_is_refused_and_the_first_keeps_running(tmp_path: Path) -> None:
    topology = leaf_spine(2, 1, 1, 10_000_000)
    with MininetFabric(topology, log_dir=tmp_path / "first") as first:
        with pytest.raises(OvsError, match="another Open vSwitch of this sandbox"):
            MininetFabric(topology, log_dir=tmp_path / "second").__enter__()
        into, out = receiver(first, "h2"), sender(first, "h1")
        out.sendto(b"x", (str(address(first, "h2")), PORT))
        assert into.recv(10) == b"x"
        assert first.observed_ports("leaf1") == {}
        into.close()
        out.close()


@pytest.mark.skipif(kernel_datapath_present(), reason="the openvswitch kernel module is loaded")
def test_the_kernel_datapath_is_refused_where_the_module_is_missing(tmp_path: Path) -> None:
    fabric = MininetFabric(leaf_spine(2, 1, 1, 10_000_000), log_dir=tmp_path, datapath="kernel")
    with pytest.raises(OvsError, match="the openvswitch module; load it with `modprobe openvswitch`"):
        fabric.__enter__()


@pytest.mark.skipif(not kernel_datapath_present(), reason="the openvswitch kernel module is not loaded")
def test_the_kernel_datapath_carries_packets_too(tmp_path: Path) -> None:
    with MininetFabric(leaf_spine(2, 2, 1, 10_000_000), log_dir=tmp_path, datapath="kernel") as fabric:
        into, out = receiver(fabric, "h2"), sender(fabric, "h1")
        out.sendto(b"x", (str(address(fabric, "h2")), PORT))
        assert into.recv(10) == b"x"
        assert len(fabric.observed_ports("leaf1")) == 1
        into.close()
        out.close()
