# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel and tools, which scripts/setup-softroce.sh fetches."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SETUP = "make softroce"


class GuestError(Exception):
    """The guest cannot be started, or ended before it had run its command. The text is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class GuestKernel:
    """An unpacked kernel: `root` holds ``boot/vmlinuz-VERSION`` and ``lib/modules/VERSION``."""

    version: str
    root: Path

    @property
    def image(self) -> Path:
        """The path of the bootable image."""
        return self.root / "boot" / f"vmlinuz-{self.version}"


@dataclass(frozen=True, slots=True)
class GuestTools:
    """The programs that run a guest."""

    virtme_run: Path
    qemu: Path
    busybox: Path


def cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of the kernel, according to the XDG Base Directory Specification."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root"), ".cache")
    return Path(base, "paralet", "softroce")


def find_kernel(cache: Path) -> GuestKernel:
    """The kernel in `cache`. Raises GuestError."""
    try:
        kernel = GuestKernel((cache / "version").read_text().strip(), cache)
    except OSError:
        kernel = None
    if kernel is None or not kernel.image.is_file():
        raise GuestError(f"the guest's kernel is not in {cache}; fetch it with `{SETUP}`")
    return kernel


def find_tools() -> GuestTools:
    """The programs, from this Python's environment or PATH. Raises GuestError, which names a missing one."""
    beside = Path(sys.executable).parent / "virtme-run"
    virtme_run = str(beside) if beside.is_file() else shutil.which("virtme-run")
    found: dict[str, Path] = {}
    for name, path, package in (
        ("virtme-run", virtme_run, "virtme-ng, from PyPI"),
        ("qemu-system-x86_64", shutil.which("qemu-system-x86_64"), "qemu-system-x86, from Debian"),
        ("busybox", shutil.which("busybox"), "busybox-static, from Debian"),
    ):
        if path is None:
            raise GuestError(f"the guest needs {name} ({package}); install all that it needs with `{SETUP}`")
        found[name] = Path(path)
    return GuestTools(found["virtme-run"], found["qemu-system-x86_64"], found["busybox"])
