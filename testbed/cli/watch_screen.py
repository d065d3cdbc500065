# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.cli.watch_screen`: the view of `paralet run --watch`, a process of its own beside the run.

It shows the lanes of the processes below its parent, the links of the spec's fabric, and how far the runs have come. It
ends when its parent closes the socket, with `q`, and with status INTERRUPTED by Ctrl-C, which is meant for the run. It
sends a byte to the socket once it is on the terminal.

usage: python -m testbed.cli.watch_screen SPEC JOURNAL SOCKET
"""

import os
import sys
from pathlib import Path

INTERRUPTED = 130
_EVERY_S = 2.0
"""Seconds between updates. An update takes about 0.1 s of a processor, which the run may need."""


def main(spec_file: Path, journal: Path, parent: int) -> int:
    """Draw until the end. `parent` is the socket's descriptor. Returns the exit status."""
    import asyncio
    from typing import ClassVar

    from textual.binding import Binding, BindingType

    from hostlib import stats
    from testbed import spec
    from testbed.cli.operations_input import operations_now
    from testbed.cli.run_progress import RunProgress, view_of
    from testbed.cli.top import exists
    from testbed.cli.top_screen import TopScreen

    class WatchScreen(TopScreen):
        BINDINGS: ClassVar[list[BindingType]] = [
            Binding("q", "quit", "Leave the view"),
            Binding("ctrl+c", "interrupt", "End the run", key_display="^c"),
        ]

        def on_mount(self) -> None:
            super().on_mount()
            asyncio.get_running_loop().add_reader(parent, self.exit)
            os.write(parent, b"1")

        def action_interrupt(self) -> None:
            self.exit(return_code=INTERRUPTED)

    os.nice(19)  # the view takes what the run leaves of the processors
    experiment = spec.load(spec_file, run_code=True)  # `paralet run` has written it
    run = os.getppid()
    screen = WatchScreen(
        lambda: stats.survey(_below(run)),
        view_of(experiment),
        _EVERY_S,
        status=RunProgress(experiment, journal).take,
        operations=operations_now,
        exists=exists,
    )
    screen.run()
    return screen.return_code or 0


def _below(ancestor: int) -> list[int]:
    """The processes below `ancestor`, by their parents in proc(5), stat."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(name))
    found, unseen = [], [ancestor]
    while unseen:
        below = children.get(unseen.pop(), [])
        found += below
        unseen += below
    return found


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
    except KeyboardInterrupt:  # before the terminal was the screen's
        sys.exit(INTERRUPTED)
