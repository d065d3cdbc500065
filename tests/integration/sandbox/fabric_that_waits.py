# SPDX-License-Identifier: Apache-2.0
"""Run in a sandbox: starts a fabric, prints "up", and waits until it is ended.

Arguments: a directory for logs, and the kind of the fabric.
"""

import os
import sys
import time
from pathlib import Path

from emul import MininetFabric, RoutedFabric
from netmodel import leaf_spine


def main() -> None:
    print("namespace", os.readlink("/proc/self/ns/net"), flush=True)
    kind = {"mininet": MininetFabric, "routed": RoutedFabric}[sys.argv[2]]
    with kind(leaf_spine(2, 2, 1, 10_000_000), log_dir=Path(sys.argv[1])) as fabric:
        fabric.popen("h1", ["sleep", "1000"])
        print("up", flush=True)
        time.sleep(1000)


if __name__ == "__main__":
    main()
