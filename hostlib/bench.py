# SPDX-License-Identifier: Apache-2.0
"""The native benchmark program."""

from pathlib import Path


def bench_program() -> Path:
    """Path of the program that measures the transport and TCP, and prints JSON lines.

    Raises FileNotFoundError when it has not been built.
    """
    program = Path(__file__).parent / "bin" / "paralet-bench"
    if not program.exists():
        raise FileNotFoundError(f"{program} is missing: build it with make setup")
    return program
