# SPDX-License-Identifier: Apache-2.0
"""NCCL makes one device of two NICs of the plugin, and moves its data over both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostlib import stats
from testbed.nccl import devices
from tests.testbed.nccl.cpu_device.test_communicators import run

pytestmark = pytest.mark.sandboxed

ROOT = Path(__file__).parents[3]
ARGV = [sys.executable, "-m", "testbed.nccl", "--device", "cpu", "--interface", "nic0", "--collectives", "all_reduce"]
NICS = {"nic0": "10.99.0.1", "nic1": "10.99.1.1"}
TOPOLOGY = """\
<system version="1">
  <cpu numaid="0" affinity="00000000,00000001" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:a1:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="nic0"/></nic>
    </pci>
    <pci busid="0000:a1:00.1" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="nic1"/></nic>
    </pci>
  </cpu>
</system>
"""
"""The two NICs as ports of one card, which is how NCCL sees a dual-port NIC."""


@pytest.fixture(scope="module", autouse=True)
def _nics() -> Iterator[None]:
    if not devices.installed():
        pytest.skip("NCCL is not installed: `make nccl` installs it")
    for name, address in NICS.items():
        subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"end-{name}"], check=True)
        subprocess.run(["ip", "address", "add", f"{address}/24", "dev", name], check=True)
        for end in (name, f"end-{name}"):
            subprocess.run(["ip", "link", "set", end, "up"], check=True)
    yield
    for name in NICS:
        subprocess.run(["ip", "link", "delete", name], check=True)


def all_reduces(folder: Path, places: str = TOPOLOGY, **variables: str) -> tuple[str, list[stats.DeviceSnapshot]]:
    """Verified all-reduces of two ranks. The log of rank 0, and what live counters said while they ran."""
    topology = folder / "topology.xml"
    topology.write_text(places)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PARALET_"))},
        "PARALET_IFNAME": "nic",
        "PARALET_FLOWLET_BYTES": "64KiB",
        "NCCL_TOPO_FILE": str(topology),
        **variables,
    }
    argv = [*ARGV, "--transports", "paralet", "--sizes", "4M", "--repetitions", "2", "--json", "--out", str(folder)]
    seen: list[stats.DeviceSnapshot] = []
    with subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            seen += [device for rank_process in stats.survey().processes for device in rank_process.devices]
            time.sleep(0.05)
        out, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    assert json.loads(out)["nwrong"] == 0
    (log,) = folder.glob("logs/paralet-*rank0.nccl.log")
    return log.read_text(), seen


@pytest.mark.parametrize(
    "variables",
    [{}, {"NCCL_NET_MERGE_LEVEL": "LOC", "NCCL_NET_FORCE_MERGE": "nic0,nic1"}],
    ids=["ports of a card", "by NCCL_NET_FORCE_MERGE"],
)
def test_nccl_fuses_two_nics_and_uses_both(tmp_path: Path, variables: dict[str, str]) -> None:
    log, seen = all_reduces(tmp_path, **variables)
    assert "device [2] nic0+nic1 fuses 2 NICs to" in log
    assert set(re.findall(r"via NET/paralet/(\d)", log)) == {"2"}
    fused = [device for device in seen if device.members]
    assert fused
    assert {tuple((nic.interface, nic.address) for nic in device.members) for device in fused} == {tuple(NICS.items())}
    assert {lane.member for device in fused for lane in device.lanes if lane.flowlets} == {0, 1}


@pytest.mark.parametrize("kept", ["0", "1"], ids=["unloaded", "kept"])
def test_later_communicators_use_the_fused_device_too(tmp_path: Path, kept: str) -> None:
    """NCCL unloads the plugin after the last communicator and fuses again, or goes on with what it has fused."""
    topology = tmp_path / "topology.xml"
    topology.write_text(TOPOLOGY)
    variables = {
        "NCCL_SOCKET_IFNAME": "nic0",
        "NCCL_TOPO_FILE": str(topology),
        "NCCL_NET_PLUGIN_REF_COUNT": kept,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": str(tmp_path / "%p.log"),
    }
    newest = next(iter(devices.installed()))
    answers = run("finalize", 2, newest, "paralet", tmp_path, PARALET_IFNAME="nic", **variables)
    assert answers == [{"right": True}] * 2
    for log in (each.read_text() for each in tmp_path.glob("*.log")):
        assert log.count("fuses 2 NICs to") == (1 if kept == "1" else 3)
        assert set(re.findall(r"via NET/paralet/(\d)", log)) == {"2"}


def test_nccl_fuses_nothing_where_it_is_told_so(tmp_path: Path) -> None:
    log, seen = all_reduces(tmp_path, NCCL_NET_MERGE_LEVEL="LOC")
    assert "fuses 2 NICs" not in log
    assert not any(device.members for device in seen)


def test_what_the_plugin_refuses_to_fuse_stays_two_devices(tmp_path: Path) -> None:
    log, seen = all_reduces(tmp_path, PARALET_LANES="1")
    assert "PARALET_LANES must be at least 2 where as many NICs are fused" in log
    assert "via NET/paralet/" in log
    assert not any(device.members for device in seen)


def test_nccl_reaches_nics_that_have_no_place_in_its_topology(tmp_path: Path) -> None:
    """It takes them for ports of one card. Were they fused, it would find no way to them."""
    log, seen = all_reduces(tmp_path, places=TOPOLOGY.replace('"nic', '"other'))
    assert "nic0 is not a PCI device, and NCCL_TOPO_FILE does not name it" in log
    assert "via NET/paralet/" in log
    assert not any(device.members for device in seen)
