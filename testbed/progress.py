# SPDX-License-Identifier: Apache-2.0
"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from contextlib import ExitStack
from typing import Self

from rich.console import Console
from rich.control import Control
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import ControlType

from netmodel.printable import printable


class Steps:
    """Shows the progress of a job of `total` steps (None: unknown). A context manager.

    Plain lines come `every_s` seconds at most, for jobs of many short steps.
    """

    def __init__(self, total: int | None, every_s: float = 0.0) -> None:
        self._every_s = every_s
        self._shown_s = -every_s
        self._total = total
        self._done = 0
        self._begin = time.monotonic()
        self._stack = ExitStack()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._stack.enter_context(self._bar)
            self._bar.add_task("", total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def now(self, text: str) -> None:
        """Show what is being done now."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=printable(text))
            return
        elapsed = time.monotonic() - self._begin
        if elapsed - self._shown_s >= self._every_s:
            self._shown_s = elapsed
            done = self._done if self._total is None else f"{self._done}/{self._total}"
            print(printable(f"[{done} {elapsed:5.1f} s] {text}"), file=sys.stderr, flush=True)

    def advance(self) -> None:
        """Count one more step as done, and show it."""
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])


class Silent(Steps):
    """Shows nothing: for a job that is a step of another."""

    def __init__(self) -> None:
        super().__init__(None)

    def __enter__(self) -> Self:
        return self

    def now(self, text: str) -> None:
        """Say nothing."""


def sweep() -> None:
    """Clear what the bar of a program that was killed has left on the terminal: its line, and the cursor hidden."""
    console = Console(stderr=True)
    if console.is_terminal:
        console.control(Control(ControlType.SHOW_CURSOR, ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
