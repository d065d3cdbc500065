# SPDX-License-Identifier: Apache-2.0
"""Configuration commands of a fabric (ip, tc, sysctl, ethtool), run to completion and checked."""

import os
import subprocess
from collections.abc import Sequence

_TIMEOUT_S = 120.0


class FabricError(Exception):
    """The fabric cannot be brought up or queried. The text is one sentence for the user."""


def run(argv: Sequence[str], lines: Sequence[str] | None = None) -> str:
    """Run a command and return its standard output.

    `lines` are written to its standard input, one per line. Without `lines` the input is empty; with an empty sequence
    there is nothing to configure and the command does not run.

    Raises FabricError with the command's own message when it fails, is not installed, or takes more than 120 s.
    """
    if lines is not None and not lines:
        return ""
    try:
        done = subprocess.run(
            argv,
            input=None if lines is None else "\n".join(lines) + "\n",
            stdin=subprocess.DEVNULL if lines is None else None,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise FabricError(f"{error.filename} is missing; `paralet doctor` tells what to install") from error
    except subprocess.TimeoutExpired as error:
        raise FabricError(f"{' '.join(argv)} did not end in {_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise FabricError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def batch(tool: str, lines: Sequence[str], enter: Sequence[str] = ()) -> None:
    """Run `ip -batch` or `tc -batch` with `lines`. `enter`: argv prefix that enters a namespace. Raises FabricError."""
    run([*enter, tool, "-batch", "-"], lines)
