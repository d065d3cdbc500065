# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.bench.links_main PROGRAM REPETITIONS BACK_END...`, inside a sandbox: the measurements of `links`
as JSON lines.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from emul.commands import FabricError
from netmodel.printable import printable
from testbed.bench import links
from testbed.errors import TestbedError


def main() -> int:
    """Returns the exit status. Prints errors to standard error."""
    program, repetitions, *ours = sys.argv[1:]
    try:
        for measurement in links.measurements(Path(program), ours, int(repetitions)):
            print(json.dumps(asdict(measurement)), flush=True)
    except (TestbedError, FabricError) as error:
        print(printable(f"links: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
