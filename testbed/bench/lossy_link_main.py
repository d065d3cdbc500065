# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.bench.lossy_link_main`, inside a sandbox: the measurements of `lossy_link` as JSON lines.

usage: lossy_link_main.py REPETITIONS, or `far` for the far end: it reads the kind and the seed of each measurement from
standard input, and prints where to connect and the number of messages that arrived.
"""

import json
import sys
from dataclasses import asdict

from emul.commands import FabricError
from hostlib import TransportError
from netmodel.printable import printable
from testbed.bench import lossy_link
from testbed.errors import TestbedError


def main() -> int:
    """Returns the exit status. Prints errors to standard error."""
    try:
        if sys.argv[1:] != ["far"]:
            for measurement in lossy_link.measurements(int(sys.argv[1])):
                print(json.dumps(asdict(measurement)), flush=True)
            return 0
        print("ready", flush=True)
        for line in sys.stdin:
            kind, seed = line.split()
            print(lossy_link.receive(kind, int(seed)), flush=True)
    except (TestbedError, FabricError, TransportError, TimeoutError) as error:
        print(printable(f"lossy link: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
