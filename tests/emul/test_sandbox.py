# SPDX-License-Identifier: Apache-2.0
"""The sandbox as far as it can be seen without root."""

from __future__ import annotations

import os

import pytest

from emul import MininetFabric, sandbox
from emul.ovs import OvsError, find_schema
from netmodel import PortRef, leaf_spine


def test_without_root_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.os, "geteuid", lambda: 1000)
    with pytest.raises(sandbox.SandboxError, match=r"needs root .* sudo$"):
        sandbox.run(["true"])


def test_a_forged_or_inherited_mark_does_not_make_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALET_SANDBOX", "net:[1]")
    assert not sandbox.inside()
    monkeypatch.setenv("PARALET_SANDBOX", os.readlink("/proc/self/ns/net"))
    assert sandbox.inside()


def test_a_fabric_outside_the_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    monkeypatch.delenv("PARALET_SANDBOX", raising=False)
    with (
        pytest.raises(sandbox.SandboxError, match="a Mininet fabric runs only inside the sandbox"),
        MininetFabric(leaf_spine(2, 2, 1, 1_000_000), log_dir=tmp_path),
    ):
        pass


def test_a_capture_at_a_port_without_a_link_is_refused_at_once(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(KeyError, match=r"no link .* leaf1:77"):
        MininetFabric(leaf_spine(2, 2, 1, 1_000_000), log_dir=tmp_path, pcap=[PortRef("leaf1", 77)])


def test_a_missing_schema_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emul.ovs._SCHEMA_CANDIDATES", ("/dev/null/schema",))
    monkeypatch.delenv("OVS_PKGDATADIR", raising=False)
    with pytest.raises(OvsError, match="apt install openvswitch-switch"):
        find_schema()
