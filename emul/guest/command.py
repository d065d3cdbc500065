# SPDX-License-Identifier: Apache-2.0
"""The command lines of a guest, from data alone: what QEMU is asked for, and what runs inside."""

import os
import shlex
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emul.guest.kernel import GuestKernel, GuestTools
from emul.sandbox_init import ENVIRONMENT_MARK

KILL_GRACE_S = 10

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_PACKAGES = os.path.realpath(sysconfig.get_path("purelib"))

# What programs write to by habit, and /lib for its modules. The guest gets its own changes to them, in its memory; the
# machine's stay as they are.
_OVERLAID = ("/etc", "/home", "/lib", "/root", "/tmp", "/var")


# virtme's own export of the root is read anew, page by page, for every program that starts. These directories nobody
# changes meanwhile, so they get a second export with a cache: programs start in a third of the time.
_CACHED = ("/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/python3", _STANDARD_LIBRARY, _PACKAGES)
_CACHE_DIR = "/run/paralet-cached"
_CACHE_MOUNT = "ro,version=9p2000.L,trans=virtio,access=any,msize=524288,cache=loose"
_CACHED_EXPORT = (
    *("-fsdev", "local,id=cached,path=/,security_model=none,readonly=on,multidevs=remap"),
    *("-device", "virtio-9p-pci,fsdev=cached,mount_tag=cached"),
)


@dataclass(frozen=True, slots=True)
class GuestOptions:
    """What a guest is given. Directories in `writable` are the machine's own; all else that is written is lost.

    `time_limit_s` is for all of it. A guest that has not started its command after `boot_limit_s` never will.
    """

    cpus: int = 2
    memory_mb: int = 3072
    time_limit_s: int = 1500
    boot_limit_s: int = 300
    writable: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def job_script(argv: Sequence[str], cwd: Path, started: Path, options: GuestOptions) -> str:
    """The shell script that runs `argv` in the guest, its output and errors on one stream.

    It leaves the file `started` first: without that file nothing of `argv` has run. All of the guest is a sandbox
    (`emul.sandbox.inside`), whose network namespace is its kernel's first.
    """
    variables = [f"{name}={value}" for name, value in options.environment.items()]
    return "\n".join(
        (
            "#!/bin/sh",
            f": > {shlex.quote(str(started))} || exit 126",
            f"cd {shlex.quote(str(cwd))} || exit 126",
            f'export {ENVIRONMENT_MARK}="$(readlink /proc/self/ns/net)"',
            f"exec {shlex.join(['env', *variables, *argv])} 2>&1",
            "",
        )
    )


def boot_script(job: Path) -> str:
    """The shell script that the guest boots into: it puts the cached directories in their places and runs `job`."""
    cached = [each for each in _CACHED if os.path.isdir(each)]
    binds = (f"mount --bind {shlex.quote(_CACHE_DIR + each)} {shlex.quote(each)}" for each in cached)
    return "\n".join(
        (
            "#!/bin/sh",
            f"mkdir -p {_CACHE_DIR}",
            f"if mount -t 9p -o {_CACHE_MOUNT} cached {_CACHE_DIR}; then",
            *binds,
            "fi",
            f"exec {shlex.quote(str(job))}",
            "",
        )
    )


def watched_argv(argv: Sequence[str], started: Path, boot_limit_s: int) -> list[str]:
    """`argv`, which is timeout(1) or becomes it, told that its time is over if `started` is not there in time."""
    watch = '(sleep "$1"; [ -e "$2" ] || kill -ALRM $$) & shift 2; exec "$@"'
    return ["sh", "-c", watch, "sh", str(boot_limit_s), str(started), *argv]


def guest_argv(
    kernel: GuestKernel, tools: GuestTools, script: Path, state: Path, cwd: Path, options: GuestOptions
) -> list[str]:
    """The command that boots the guest and runs `script` in it. Exit status: the script's; 124 after the limit.

    The guest may write to the directory `state`, as to those of `options`. Its standard output is the script's, its
    standard error the guest's console. The whole of it is low in priority.
    """
    overlaid = [*_OVERLAID] if any(cwd.is_relative_to(each) for each in _OVERLAID) else [*_OVERLAID, str(cwd)]
    return [
        *("nice", "-n", "10"),
        *("timeout", f"--kill-after={KILL_GRACE_S}", str(options.time_limit_s)),
        str(tools.virtme_run),
        *("--kimg", str(kernel.image)),
        *("--mods", "auto"),
        *("--qemu-bin", str(tools.qemu)),
        *("--busybox", str(tools.busybox)),
        "--disable-kvm",  # where /dev/kvm can be opened and does not work, a guest would hang
        "--show-boot-console",
        "--verbose",  # the kernel's messages belong in the log
        # The kernel tests the timer against real time, of which a guest in software may get little: it panicked.
        *("--kopt", "no_timer_check"),
        *("--user", "root"),
        *("--cpus", str(options.cpus)),
        *("--memory", f"{options.memory_mb}M"),
        *(word for each in overlaid for word in ("--overlay-rwdir", each)),
        *("--rodir", str(script.parent)),
        *(word for each in (state, *options.writable) for word in ("--rwdir", str(each))),
        *(f"--qemu-opt={word}" for word in _CACHED_EXPORT),
        *("--script-sh", f"exec {shlex.quote(str(script))}"),
    ]
