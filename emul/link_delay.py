# SPDX-License-Identifier: Apache-2.0
"""Delay and reordering of what leaves by interfaces, by the native program `paralet-link-delay`.

Kernels without netem hold no packet back. The rules of a port (`emul.link_faults`) forward its packets to a tap, the
program keeps them until they are due, and sends them by the port with the packet mark `MARK`, which the rules let pass.
"""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from emul.commands import FabricError

MARK = 0x70617261
"""Packet mark (SO_MARK) of packets that have waited."""

_NS = 1_000_000_000
_PROGRAM = Path(__file__).parent / "bin" / "paralet-link-delay"
_EXIT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class DelayCounts:
    """Packets of an interface that have left after their delay, those of them that were late, and those dropped.

    Packets are dropped when more than 256 MiB wait in the whole namespace, and when the link is down.
    """

    sent: int
    late: int
    dropped: int


class LinkDelay:
    """The running program, one per namespace. Raises FabricError when it is not built.

    enter: argv prefix that enters the network namespace of the interfaces.
    """

    def __init__(self, enter: Sequence[str] = ()) -> None:
        try:
            self._process = subprocess.Popen(
                [*enter, _PROGRAM, str(MARK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        except FileNotFoundError as error:
            raise FabricError(f"{_PROGRAM} is missing: build it with make setup") from error

    def set(self, interface: str, tap: str, delay_s: float, late_share: float, late_by_s: float) -> None:
        """From now on, what is forwarded to `tap` leaves by `interface` after this delay.

        late_share: the probability with which a packet waits up to `late_by_s` longer, and so is overtaken. The tap is
        made for the first call that names the interface. Raises FabricError.
        """
        self._ask(f"set {interface} {tap} {round(delay_s * _NS)} {late_share} {round(late_by_s * _NS)}")

    def counts(self) -> dict[str, DelayCounts]:
        """The counts by interface. Raises FabricError."""
        words = self._ask("counts").split()
        rows = zip(*[iter(words)] * 4, strict=True)
        return {name: DelayCounts(int(sent), int(late), int(dropped)) for name, sent, late, dropped in rows}

    def close(self) -> None:
        """End the program. Its taps go with it, and packets that wait are lost."""
        self._stdin.close()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None  # it is a pipe
        return self._process.stdin

    def _ask(self, command: str) -> str:
        assert self._process.stdout is not None  # it is a pipe
        try:
            self._stdin.write(f"{command}\n")
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer.endswith("\n") or answer.startswith("error"):
            raise FabricError(f"paralet-link-delay cannot {command}: {answer.strip() or 'it has ended'}")
        return answer
