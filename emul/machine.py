# SPDX-License-Identifier: Apache-2.0
"""Checks of what this machine can do for an emulation, each with the command that repairs a failure."""

import importlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from emul.routed.requirements import lack

_TRY_TIMEOUT_S = 60
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `ok` is false only where the fabric cannot run.

    `detail` says what was found. `remedy` is the command that repairs it, or that enables an optional feature; it is
    empty where there is nothing to do.
    """

    name: str
    ok: bool
    detail: str
    remedy: str


def probe() -> list[Finding]:
    """Check this machine. Nothing is left behind: commands are tried in a temporary network namespace."""
    checks: tuple[Callable[[], Finding], ...] = (
        _root,
        _namespaces,
        _open_vswitch,
        _mininet,
        _shaping,
        _tun,
        _raw_sockets,
        _tools,
        _host_programs,
        _os_ken,
        _kernel_datapath,
        _routers,
    )
    return [check() for check in checks]


def _try(*argv: str) -> str | None:
    """Run a command: None when it succeeds, otherwise its error message."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRY_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return f"{argv[0]} is not installed"
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip() or f"{argv[0]} ended with {done.returncode}")


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)


def _root() -> Finding:
    is_root = os.geteuid() == 0
    return Finding("root", is_root, "running as root" if is_root else "not running as root", "" if is_root else "sudo")


def _namespaces() -> Finding:
    fault = _try("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "true")
    if fault is None:
        return Finding("namespaces", True, "network, mount and PID namespaces can be made", "")
    remedy = "apt install util-linux" if "not installed" in fault else "run as root, in a container with --privileged"
    return Finding("namespaces", False, fault, remedy)


def _open_vswitch() -> Finding:
    remedy = "apt install openvswitch-switch"
    missing = [
        name
        for name in ("ovsdb-server", "ovs-vswitchd", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ovs-appctl")
        if _program(name) is None
    ]
    if missing:
        return Finding("Open vSwitch", False, f"missing: {', '.join(missing)}", remedy)
    program = _program("ovs-vswitchd")
    assert program is not None
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_TRY_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Open vSwitch", False, f"does not run: {error}", remedy)
    return Finding("Open vSwitch", done.returncode == 0, (done.stdout.splitlines() or ["no version"])[0], remedy)


def _mininet() -> Finding:
    remedy = "apt install mininet, and a venv made by `/usr/bin/python3 -m venv --system-site-packages`"
    if util.find_spec("mininet") is None:
        return Finding("Mininet", False, f"{sys.executable} cannot import it", remedy)
    missing = [name for name in ("mnexec", "ifconfig") if _program(name) is None]
    if missing:
        return Finding("Mininet", False, f"missing: {', '.join(missing)}", "apt install mininet net-tools")
    try:
        importlib.import_module("emul.mininet_net")
    except Exception as error:
        return Finding("Mininet", False, f"{type(error).__name__}: {error}", remedy)
    return Finding("Mininet", True, "it can be imported", "")


def _shaping() -> Finding:
    if os.geteuid() != 0:
        return Finding("link shaping", False, "needs root to be tried", "sudo")
    lo = ("unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root")
    fault = _try(*lo, "tbf", "rate", "20mbit", "burst", "30000b", "limit", "400000b") or _try(
        *lo, "pfifo_head_drop", "limit", "96"
    )
    if fault is None:
        return Finding("link shaping", True, "tbf and pfifo_head_drop work", "")
    remedy = "apt install iproute2" if "not installed" in fault else "modprobe sch_tbf"
    return Finding("link shaping", False, fault, remedy)


def _tun() -> Finding:
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        remedy = "modprobe tun, or in a container add --device /dev/net/tun"
        return Finding(
            "/dev/net/tun", False, f"the bridges of the userspace datapath need it: {error.strerror}", remedy
        )
    return Finding("/dev/net/tun", True, "it can be opened", "")


def _raw_sockets() -> Finding:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except OSError as error:
        detail = f"the userspace datapath and captures need them: {error.strerror}"
        return Finding("raw sockets", False, detail, "run as root, in a container with --cap-add NET_RAW")
    return Finding("raw sockets", True, "they can be opened", "")


def _tools() -> Finding:
    packages = {
        "ip": "iproute2",
        "tc": "iproute2",
        "ethtool": "ethtool",
        "sysctl": "procps",
        "tcpdump": "tcpdump",
        "nft": "nftables",
    }
    missing, remedy = _missing(packages)
    if not missing:
        return Finding("tools", True, ", ".join(packages), "")
    return Finding("tools", False, f"missing: {', '.join(missing)}", remedy)


def _host_programs() -> Finding:
    packages = {"ping": "iputils-ping", "iperf3": "iperf3"}
    missing, remedy = _missing(packages)
    if not missing:
        return Finding("programs for hosts", True, ", ".join(packages), "")
    return Finding("programs for hosts", True, f"optional: {', '.join(missing)} missing", remedy)


def _missing(packages: Mapping[str, str]) -> tuple[list[str], str]:
    """The programs that are missing, and the command that installs them. packages: by program."""
    missing = [name for name in packages if _program(name) is None]
    return missing, f"apt install {' '.join(sorted({packages[name] for name in missing}))}"


def _os_ken() -> Finding:
    found = util.find_spec("os_ken") is not None
    remedy = "" if found else "pip install 'paralet[fabric]'"
    return Finding("os-ken", found, "it can be imported" if found else "missing", remedy)


def _kernel_datapath() -> Finding:
    if Path("/sys/module/openvswitch").is_dir():
        return Finding("kernel datapath", True, "the openvswitch module is loaded", "")
    return Finding(
        "kernel datapath",
        True,
        "optional: the openvswitch module is not loaded; the userspace datapath is used",
        "modprobe openvswitch",
    )


def _routers() -> Finding:
    lacking = lack()
    if lacking is None:
        return Finding("routers", True, "FRR is installed, and the kernel has seeds", "")
    return Finding("routers", True, f"optional: {lacking.what}; fabrics of routers cannot run", lacking.remedy)
