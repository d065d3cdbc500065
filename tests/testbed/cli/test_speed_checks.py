# SPDX-License-Identifier: Apache-2.0
"""What `paralet doctor` says about the speed of interfaces, on made-up facts and on trees like /sys and /proc."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import nccl_net_plugin
from testbed.cli import ethtool, speed_checks
from testbed.cli.speed_checks import Host, Interface
from testbed.nccl import back_ends
from tests.testbed.cli.test_cli import paralet

HOST = Host(cores=16, quota=None, rmem_max_bytes=16 << 20, tcp_congestion="cubic", has_cubic=True)
GOOD = Interface(
    name="eth7",
    mtu_bytes=9000,
    roce=False,
    udp_segmentation=True,
    udp_segmentation_fixed=False,
    tcp_segmentation=True,
    gro=True,
    udp_by_ports=True,
    queues=16,
    most_queues=63,
)
CLOUD = dataclasses.replace(GOOD, udp_segmentation=False, udp_segmentation_fixed=True)
SILENT = dataclasses.replace(
    GOOD, udp_segmentation=None, tcp_segmentation=None, gro=None, udp_by_ports=None, queues=None, most_queues=None
)


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def test_a_good_interface_needs_nothing() -> None:
    assert speed_checks.settings(GOOD, HOST) == []
    (finding, *_) = speed_checks.findings([GOOD], HOST, ["soft", "verbs"])
    assert (finding.name, finding.ok, finding.remedy) == ("speed of eth7", True, "")
    assert "receive queues 16 of 63 for 16 processors" in finding.detail


@pytest.mark.parametrize(
    ("change", "command"),
    [
        ({"mtu_bytes": 1500}, "ip link set eth7 mtu 9000, if all switches take it"),
        ({"udp_segmentation": False}, "ethtool -K eth7 tx-udp-segmentation on"),
        ({"tcp_segmentation": False}, "ethtool -K eth7 tso on"),
        ({"gro": False}, "ethtool -K eth7 gro on"),
        ({"udp_by_ports": False}, "ethtool -N eth7 rx-flow-hash udp4 sdfn; ethtool -N eth7 rx-flow-hash udp6 sdfn"),
        ({"queues": 4}, "ethtool -L eth7 combined 16"),
    ],
)
def test_each_fault_has_its_command(change: dict[str, object], command: str) -> None:
    bad = dataclasses.replace(GOOD, **change)  # type: ignore[arg-type]
    assert speed_checks.settings(bad, HOST) == [command]
    (finding, *_) = speed_checks.findings([bad], HOST, [])
    assert finding.remedy == command
    assert finding.detail.startswith("optional: ")


def test_what_the_driver_cannot_change_or_does_not_tell_has_no_command() -> None:
    assert speed_checks.settings(CLOUD, HOST) == []
    assert speed_checks.settings(SILENT, HOST) == []
    (cloud, silent, *_) = speed_checks.findings([CLOUD, SILENT], HOST, [])
    assert "(tx-udp-segmentation) off, and the driver has none" in cloud.detail
    assert silent.detail.count("unknown") == 5
    single = dataclasses.replace(GOOD, queues=1, most_queues=1, udp_by_ports=False)
    assert speed_checks.settings(single, HOST) == []


def test_the_back_end_to_take() -> None:
    built = ["soft", "verbs", "tcp"]
    roce = dataclasses.replace(GOOD, roce=True)
    assert speed_checks.back_end(roce, built).name == "verbs"
    assert speed_checks.back_end(GOOD, built).name == "tcp"
    assert speed_checks.back_end(GOOD, ["soft", "verbs"]).name == "soft"
    assert speed_checks.back_end(roce, []).name == "soft"  # the plugin was not built, so nothing tells more
    slow, usual = (speed_checks.back_end(interface, ["soft"]) for interface in (CLOUD, GOOD))
    assert slow.name == usual.name == "soft"
    assert "Socket transport may be much faster" in slow.why
    assert "Socket" not in usual.why


def test_the_back_end_is_what_the_plugin_takes_by_default() -> None:
    details = [speed_checks.findings([GOOD], HOST, built)[0].detail for built in (["auto", "soft", "tcp"], ["soft"])]
    assert details[0].startswith("PARALET_BACKEND=auto takes tcp: ")
    assert details[1].startswith("PARALET_BACKEND=soft: ")


def test_every_back_end_of_the_build_has_a_rule() -> None:
    assert set(back_ends.beside(nccl_net_plugin.path())) - {speed_checks.AUTOMATIC} <= {
        back_end.name for back_end in speed_checks.BACK_ENDS
    }


def test_the_machine_s_limits() -> None:
    tight = Host(cores=16, quota=2.5, rmem_max_bytes=212_992, tcp_congestion="bbr", has_cubic=True)
    buffers, congestion, processors = speed_checks.findings([], tight, [])
    assert buffers.remedy == "sysctl -w net.core.rmem_max=8388608"
    assert congestion.remedy == "export PARALET_TCP_CONGESTION=cubic, for lanes alone"
    assert "16 processors, of which the control group's quota allows 2.5" in processors.detail
    (_, without_cubic, _) = speed_checks.findings([], dataclasses.replace(tight, has_cubic=False), [])
    assert without_cubic.remedy == "export PARALET_TCP_CONGESTION=reno, for lanes alone"
    buffers, congestion, processors = speed_checks.findings([], HOST, [])
    assert (buffers.remedy, congestion.remedy, processors.detail) == ("", "", "16 processors")
    silent = dataclasses.replace(HOST, rmem_max_bytes=None, tcp_congestion=None)
    buffers, congestion, _ = speed_checks.findings([], silent, [])
    assert buffers.detail.endswith("unknown")
    assert congestion.detail.endswith("unknown")


def test_interfaces_are_those_with_addresses_and_nics_that_are_up(tmp_path: Path) -> None:
    for name, kind, state, nic in [("lo", 772, "unknown", False), ("eth0", 1, "up", True), ("eth1", 1, "down", True)]:
        write(tmp_path / "class/net" / name / "type", str(kind))
        write(tmp_path / "class/net" / name / "operstate", state)
        if nic:
            (tmp_path / "class/net" / name / "device").mkdir()
    assert speed_checks.interface_names(["lo"], tmp_path) == ["eth0"]
    assert speed_checks.interface_names(["lo", "eth1:2", "gone"], tmp_path) == ["eth1", "eth0"]


def test_an_active_roce_port_is_found(tmp_path: Path) -> None:
    nic = tmp_path / "class/infiniband/mlx5_0"
    (nic / "device/net/eth7").mkdir(parents=True)
    write(nic / "ports/1/state", "1: DOWN")
    assert not speed_checks.read_interface("eth7", tmp_path).roce
    write(nic / "ports/1/state", "4: ACTIVE")
    assert speed_checks.read_interface("eth7", tmp_path).roce
    write(nic / "parent", "eth7")  # a software device
    assert not speed_checks.read_interface("eth7", tmp_path).roce


def test_the_congestion_controls_of_the_kernel_are_read(tmp_path: Path) -> None:
    assert speed_checks.read_host(tmp_path, tmp_path).tcp_congestion is None
    write(tmp_path / "sys/net/ipv4/tcp_congestion_control", "bbr")
    write(tmp_path / "sys/net/ipv4/tcp_allowed_congestion_control", "reno bbr")
    host = speed_checks.read_host(tmp_path, tmp_path)
    assert (host.tcp_congestion, host.has_cubic) == ("bbr", False)
    write(tmp_path / "sys/net/ipv4/tcp_allowed_congestion_control", "reno cubic")
    assert speed_checks.read_host(tmp_path, tmp_path).has_cubic


def test_the_least_quota_of_the_control_groups_counts(tmp_path: Path) -> None:
    write(tmp_path / "self/cgroup", "0::/pods/one")
    assert speed_checks.cpu_quota(tmp_path, tmp_path) is None
    write(tmp_path / "fs/cgroup/pods/one/cpu.max", "max 100000")
    assert speed_checks.cpu_quota(tmp_path, tmp_path) is None
    write(tmp_path / "fs/cgroup/pods/cpu.max", "250000 100000")
    assert speed_checks.cpu_quota(tmp_path, tmp_path) == 2.5
    write(tmp_path / "self/cgroup", "3:cpu,cpuacct:/pods\n0::/")
    write(tmp_path / "fs/cgroup/cpu,cpuacct/pods/cpu.cfs_quota_us", "-1")
    write(tmp_path / "fs/cgroup/cpu,cpuacct/pods/cpu.cfs_period_us", "100000")
    assert speed_checks.cpu_quota(tmp_path, tmp_path) is None
    write(tmp_path / "fs/cgroup/cpu,cpuacct/pods/cpu.cfs_quota_us", "50000")
    assert speed_checks.cpu_quota(tmp_path, tmp_path) == 0.5


def test_loopback_s_driver_tells_features_and_nothing_of_queues() -> None:
    features = ethtool.features("lo")
    assert isinstance(features["tx-tcp-segmentation"].active, bool)
    assert features["netns-local" if "netns-local" in features else "loopback"].fixed
    assert ethtool.queues("lo") is None
    assert ethtool.hashes_ports("lo") == {}


def test_an_interface_that_does_not_exist_is_unknown() -> None:
    assert ethtool.features("no-such") == {}
    nothing = speed_checks.read_interface("no-such")
    assert (nothing.mtu_bytes, nothing.gro, nothing.queues, nothing.udp_by_ports) == (0, None, None, None)


def test_doctor_prints_the_facts_as_json() -> None:
    answer = json.loads(paralet("doctor", "--json").stdout)
    assert answer["host"]["cores"] >= 1
    for interface in answer["interfaces"]:
        assert interface["back_end"] in {"soft", "tcp", "verbs"}
        assert isinstance(interface["settings"], list)
