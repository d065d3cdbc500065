# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.bench.bring_up`: how long a fabric of 64 hosts and 48 routers takes until all routes are there.

Four pods have four leaves and four aggregation routers each, and 16 cores join them. Needs root.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from emul import FabricError, RoutedFabric, sandbox
from netmodel import Topology, clos
from netmodel.printable import printable
from testbed.machine import this_machine

LARGE = clos(4, 4, 4, 4, 4, 10_000_000)


def measure(topology: Topology) -> tuple[float, float]:
    """Seconds until the fabric is up, and until it is down again. Raises FabricError."""
    with tempfile.TemporaryDirectory() as logs:
        begin_s = time.monotonic()
        with RoutedFabric(topology, log_dir=Path(logs)):
            up_s = time.monotonic()
        return up_s - begin_s, time.monotonic() - up_s


def main(argv: Sequence[str]) -> int:
    """Print the times, from inside a sandbox that it makes. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.bench.bring_up",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a sentence")
    arguments = parser.parse_args(argv)
    if not sandbox.inside():
        return sandbox.run([sys.executable, "-m", "testbed.bench.bring_up", *argv])
    machine, load = str(this_machine()), os.getloadavg()[0]
    try:
        up_s, down_s = measure(LARGE)
    except FabricError as error:
        print(printable(f"bring-up: {error}"), file=sys.stderr)
        return 1
    hosts, routers = len(LARGE.hosts), len(LARGE.switches)
    if arguments.json:
        found = {"hosts": hosts, "routers": routers, "up_s": up_s, "down_s": down_s, "machine": machine, "load": load}
        print(json.dumps(found))
    else:
        said = f"{hosts} hosts and {routers} routers: up after {up_s:.1f} s, down after {down_s:.1f} s more"
        print(printable(f"{said} ({machine}; load average {load:.0f})"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
