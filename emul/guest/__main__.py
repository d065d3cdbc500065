# SPDX-License-Identifier: Apache-2.0
"""``python -m emul.guest -- COMMAND ...``: run a command in a guest."""

import argparse
import sys
from pathlib import Path

from emul.guest.command import GuestOptions
from emul.guest.kernel import GuestError
from emul.guest.runner import run
from netmodel.printable import printable


def main() -> int:
    """Returns the command's exit status; 2 for wrong usage; 1 when something is missing or the guest itself failed."""
    parser = argparse.ArgumentParser(
        prog="python -m emul.guest",
        description="Run COMMAND in QEMU, on a Debian kernel with SoftRoCE and OVS's datapath, over this file system.",
        epilog="example: python -m emul.guest --writable results -- sh -c 'modprobe rdma_rxe && uname -r'",
    )
    defaults = GuestOptions()
    parser.add_argument("--cpus", type=int, default=defaults.cpus, help="processors (default %(default)s)")
    parser.add_argument("--memory-mb", type=int, default=defaults.memory_mb, help="memory in MiB (default %(default)s)")
    parser.add_argument(
        "--time-limit-s", type=int, default=defaults.time_limit_s, help="seconds, boot included (default %(default)s)"
    )
    parser.add_argument("--log", type=Path, default=Path("build/guest.log"), help="console log (default %(default)s)")
    parser.add_argument(
        "--writable",
        type=Path,
        action="append",
        default=[],
        help="a directory whose changes are kept",
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the command and its arguments, after --")
    given = parser.parse_args()
    for directory in given.writable:
        if not directory.is_dir():
            parser.error(f"--writable {directory}: there is no such directory")
    options = GuestOptions(
        cpus=given.cpus,
        memory_mb=given.memory_mb,
        time_limit_s=given.time_limit_s,
        writable=[directory.resolve() for directory in given.writable],
    )
    try:
        return run(given.command, log=given.log, options=options)
    except GuestError as error:
        sys.stderr.write(f"{printable(error)}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
