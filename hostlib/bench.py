# SPDX-License-Identifier: Apache-2.0
"""The native benchmark program."""

from pathlib import Path


def bench_program() -> Path:
    """The program that measures the transport beside TCP and prints JSON lines. Raises FileNotFoundError."""
    program = Path(__file__).parent / "bin" / "paralet-bench"
    if not program.exists():
        raise FileNotFoundError(f"{program} is missing: build it with make setup")
    return program
