# SPDX-License-Identifier: Apache-2.0
"""Where a command's output goes, and where the programs that it starts run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True, slots=True)
class Terminal:
    """The terminal, files or pipes of whoever gave a command."""

    output: IO[str]
    errors: IO[str]
    run: Callable[[Sequence[str]], int]
    """Runs a program with the same input and output. Its exit status; 128 + n when signal n ended it.

    Raises FileNotFoundError where it is not installed.
    """

    def write(self, text: str) -> None:
        """Write text of whole lines to the output."""
        self.output.write(text)
        self.output.flush()
