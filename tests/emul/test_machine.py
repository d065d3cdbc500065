# SPDX-License-Identifier: Apache-2.0
"""The probe's findings on machines that lack something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import emul
from emul import machine
from emul.routed import requirements


def finding(name: str) -> emul.Finding:
    return next(found for found in emul.probe() if found.name == name)


def test_every_fault_comes_with_a_remedy() -> None:
    findings = emul.probe()
    assert len({found.name for found in findings}) == len(findings)
    for found in findings:
        assert found.detail
        assert found.ok or found.remedy


def test_missing_root_is_the_first_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    assert finding("root") == emul.Finding("root", False, "not running as root", "sudo")
    assert not finding("link shaping").ok


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    absent = {"ovs-vswitchd", "tcpdump", "mnexec", "ping", "iperf3"}
    monkeypatch.setattr(
        machine.shutil, "which", lambda name, **kwargs: None if name in absent else which(name, **kwargs) or "/bin/true"
    )
    assert finding("Open vSwitch") == emul.Finding(
        "Open vSwitch", False, "missing: ovs-vswitchd", "apt install openvswitch-switch"
    )
    assert finding("tools") == emul.Finding("tools", False, "missing: tcpdump", "apt install tcpdump")
    assert finding("programs for hosts") == emul.Finding(
        "programs for hosts", True, "optional: ping, iperf3 missing", "apt install iperf3 iputils-ping"
    )


def test_a_container_without_raw_sockets_is_told_which_capability_it_lacks() -> None:
    """Docker grants CAP_NET_RAW by default, Podman does not. Without it every port of the fabric stays dead."""
    script = "from emul import machine; print(machine._raw_sockets())"
    command = [sys.executable, "-c", script]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "ok=False" in done.stdout
    assert "--cap-add NET_RAW" in done.stdout


def test_the_kernel_module_is_optional() -> None:
    assert finding("kernel datapath").ok


def test_mininet_leaves_other_loggers_alone() -> None:
    script = "import logging, emul.mininet_net; logging.basicConfig(level='INFO'); logging.getLogger('x').info('heard')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "heard" in done.stderr


def test_mininet_needs_no_distutils() -> None:
    """As on Python 3.12, and without setuptools, which has a copy of distutils and takes long to import."""
    script = """
import sys

class Removed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("distutils", "setuptools"):
            raise ModuleNotFoundError(name)

sys.meta_path[:] = [Removed, *(finder for finder in sys.meta_path if type(finder).__name__ != "DistutilsMetaFinder")]
from emul.mininet_net import OVSSwitch
OVSSwitch.OVSVersion = "1.9"
print(OVSSwitch.isOldOVS(), "distutils" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def test_importing_emul_imports_neither_mininet_nor_os_ken() -> None:
    script = "import sys, emul; sys.exit(any(name.split('.')[0] in ('mininet', 'os_ken') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_a_machine_that_cannot_run_routers_is_told_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "program", lambda name: None)
    assert finding("routers") == emul.Finding(
        "routers", True, "optional: FRR's zebra and bgpd are missing; fabrics of routers cannot run", "apt install frr"
    )
    monkeypatch.setattr(requirements, "program", lambda name: name)
    monkeypatch.setattr(requirements, "_SEED", tmp_path / "seed")
    assert "has no seed for its choice among equal paths" in finding("routers").detail
