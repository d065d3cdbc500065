# SPDX-License-Identifier: Apache-2.0
"""One rank of a group in a process of its own: all_reduce without end, until something fails.

Arguments: rank, size, retry time in seconds, folder in which the ranks exchange their handles, back end. Prints
"running" after the first operation, and "failed: .." with the error.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import cast

import numpy as np

from hostlib import Device, TransportError
from hostlib.collectives import Group
from hostlib.device import Backend


def main() -> None:
    rank, size, retry_time_s, folder = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    backend = cast(Backend, sys.argv[5])

    def exchange(handle: bytes) -> list[bytes]:
        temporary = folder / f"{rank}.part"
        temporary.write_bytes(handle)
        temporary.rename(folder / str(rank))
        paths = [folder / str(other) for other in range(size)]
        while not all(path.exists() for path in paths):
            time.sleep(0.01)
        return [path.read_bytes() for path in paths]

    with (
        Device(f"127.0.2.{rank + 1}", backend=backend, lanes=2, retry_time_s=retry_time_s) as device,
        Group(device, rank, size, exchange) as group,
    ):
        sizes = (100, 30_000, 500_000)
        number = 0
        try:
            while True:
                data = np.full(sizes[number % len(sizes)], rank, np.float32)
                operation = group.all_reduce(
                    data.ctypes.data, data.ctypes.data, len(data), "float32", awaited=number % 2 == 0
                )
                operation.wait()
                assert (data == sum(range(size))).all()
                number += 1
                if number == len(sizes):
                    print("running", flush=True)
        except TransportError as error:
            print(f"failed: {error}", flush=True)


if __name__ == "__main__":
    main()
