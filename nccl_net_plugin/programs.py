# SPDX-License-Identifier: Apache-2.0
"""The native programs beside the plugin."""

from pathlib import Path


def driver_program() -> Path:
    """``paralet-nccl-driver``: collectives over a net plugin, as NCCL drives it. Raises FileNotFoundError."""
    program = Path(__file__).resolve().parent / "bin" / "paralet-nccl-driver"
    if not program.is_file():
        raise FileNotFoundError(f"{program} is missing: build it with `make setup`, or install paralet with pip")
    return program
