# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.cli.watch_screen`: the view of `paralet run --watch`, a process of its own beside the run.

It shows the lanes of the processes below its parent, the links of the spec's fabric, and the finished runs. It ends
when its parent closes the socket, with `q`, and with status INTERRUPTED by Ctrl-C, which is meant for the run. It sends
a byte to the socket once it is on the terminal.

usage: python -m testbed.cli.watch_screen SPEC FINISHED SOCKET
"""

import os
import sys
from pathlib import Path

INTERRUPTED = 130
_EVERY_S = 2.0
"""Seconds between updates. An update takes about 0.1 s of a processor, which the run may need."""


def main(spec_file: Path, finished: Path, parent: int) -> int:
    """Draw until the end. `parent` is the socket's descriptor. Returns the exit status."""
    import asyncio
    from functools import partial
    from typing import ClassVar

    from textual.binding import Binding, BindingType

    from hostlib import stats
    from testbed import spec
    from testbed.analysis.jobs import ideal_at
    from testbed.cli.fabric import HASHES
    from testbed.cli.top_screen import TopScreen
    from testbed.live.fabric_view import FabricView
    from testbed.live.runs_so_far import compared, finished_runs

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

    os.nice(19)  # an emulated fabric needs the processors: the view takes what is left
    experiment = spec.load(spec_file)
    view = FabricView(
        experiment.topology, HASHES["rules" if experiment.spec.pinning == "rules" else "ovs"](experiment.topology)
    )
    policies = [policy.name for policy in experiment.spec.policies]
    total = len(experiment.seeds) * len(policies)
    run = os.getppid()

    def so_far() -> str:
        with finished.open() as lines:
            return compared(finished_runs(lines), policies, partial(ideal_at, experiment), total)

    screen = WatchScreen(lambda: stats.survey(_below(run)), view if view.pairs else None, _EVERY_S, status=so_far)
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
