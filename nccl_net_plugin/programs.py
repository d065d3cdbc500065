# SPDX-License-Identifier: Apache-2.0
"""Native programs that are installed with the plugin."""

from pathlib import Path


def driver_program() -> Path:
    """Path of ``paralet-nccl-driver``, which runs collectives over a net plugin as NCCL does.

    Raises FileNotFoundError when it has not been built.
    """
    program = Path(__file__).resolve().parent / "bin" / "paralet-nccl-driver"
    if not program.is_file():
        raise FileNotFoundError(f"{program} is missing: build it with `make setup`, or install paralet with pip")
    return program
