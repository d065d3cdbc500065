# SPDX-License-Identifier: Apache-2.0
"""Between lines and messages of several at a time: those of a host, and those to hosts."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from sdn.path_service.messages import HostMessage, MessageError, Release, to_line
from sdn.path_service.pinning import Sends


def lines_of(sends: Sends) -> Iterable[tuple[int, bytes]]:
    """Connections, each once, with all lines that it gets, so that each is written to once."""
    if len(sends) == 1:
        return [(number, to_line(message)) for number, message in sends]
    together: defaultdict[int, list[bytes]] = defaultdict(list)
    for number, message in sends:
        together[number].append(to_line(message))
    return [(number, b"".join(lines)) for number, lines in together.items()]


class Said:
    """The messages in lines, up to the first line that is none, or to the first after `until_s` of the clock.

    The last message is none that releases an elephant, if possible: one that is announced next may keep its path.
    """

    __slots__ = ("_lines", "_read", "_until_s", "count", "wrong")

    def __init__(self, lines: list[bytes], until_s: float, read: Callable[[bytes], HostMessage]) -> None:
        self.count = 0
        """The number of messages so far."""
        self.wrong = ""
        """Why the next line is not a message, if it is none."""
        self._lines = lines
        self._until_s = until_s
        self._read = read

    def __iter__(self) -> Iterator[HostMessage]:
        for line in self._lines:
            try:
                message = self._read(line)
            except MessageError as error:
                self.wrong = str(error)
                return
            self.count += 1
            yield message
            if type(message) is not Release and time.perf_counter() >= self._until_s:
                return
