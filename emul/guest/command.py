# SPDX-License-Identifier: Apache-2.0
"""The command line of a guest and the scripts that run in it. Pure, except that it looks which directories exist."""

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

# Directories to which programs commonly write, and /lib for kernel modules. The guest keeps its changes to them in
# memory; the machine's directories are not changed.
_OVERLAID = ("/etc", "/home", "/lib", "/root", "/tmp", "/var")


# virtme's export of the root is not cached, so every program start reads the program again. These directories do not
# change during a run, so they get a second export with a cache: programs start in a third of the time.
_CACHED = ("/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/python3", _STANDARD_LIBRARY, _PACKAGES)
_CACHE_DIR = "/run/paralet-cached"
_CACHE_MOUNT = "ro,version=9p2000.L,trans=virtio,access=any,msize=524288,cache=loose"
_CACHED_EXPORT = (
    *("-fsdev", "local,id=cached,path=/,security_model=none,readonly=on,multidevs=remap"),
    *("-device", "virtio-9p-pci,fsdev=cached,mount_tag=cached"),
)


@dataclass(frozen=True, slots=True)
class GuestOptions:
    """Resources and limits of a guest.

    Changes in the directories of `writable` are kept; all other changes are lost. `time_limit_s` covers boot and
    command. A guest that has not started its command after `boot_limit_s` is considered hung.
    """

    cpus: int = 2
    memory_mb: int = 3072
    time_limit_s: int = 1500
    boot_limit_s: int = 300
    writable: Sequence[Path] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def job_script(argv: Sequence[str], cwd: Path, started: Path, options: GuestOptions) -> str:
    """The shell script that runs `argv` in the guest, with standard output and standard error on one stream.

    It first creates the file `started`; without that file `argv` has not run. The whole guest counts as a sandbox
    (`emul.sandbox.inside`), whose network namespace is the first one of its kernel.
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
    """The first shell script of the guest: it mounts the cached directories and runs `job`."""
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
    """`argv` with a watchdog that sends SIGALRM if the file `started` does not exist after `boot_limit_s` seconds.

    `argv` must be timeout(1), or exec it: timeout(1) reacts to SIGALRM as to the end of its time.
    """
    watch = '(sleep "$1"; [ -e "$2" ] || kill -ALRM $$) & shift 2; exec "$@"'
    return ["sh", "-c", watch, "sh", str(boot_limit_s), str(started), *argv]


def guest_argv(
    kernel: GuestKernel, tools: GuestTools, script: Path, state: Path, cwd: Path, options: GuestOptions
) -> list[str]:
    """The command that boots the guest and runs `script` in it. Its exit status is the script's, or 124 at the limit.

    The guest may write to the directory `state` and to `options.writable`. The command's standard output is that of the
    script, its standard error is the guest's console. It runs at low priority.
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
        "--disable-kvm",  # a guest hangs where /dev/kvm can be opened but does not work
        "--show-boot-console",
        "--verbose",  # the kernel's messages belong in the log
        # The kernel checks the timer against real time and panics in a slow guest without this option.
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
