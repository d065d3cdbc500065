# SPDX-License-Identifier: Apache-2.0
"""Reads commands from a terminal, with history and completion, or from a file or pipe."""

import readline
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from netmodel.printable import printable
from testbed.errors import lines_of
from testbed.run.console.console import COMMANDS, FabricConsole
from testbed.run.console.terminal import Terminal

_LEAVING = ("exit", "quit")


def serve(console: FabricConsole, name: str) -> bool:
    """Carry out commands until the end of the input or `exit`. Whether one that nobody typed failed."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        _complete(console)
        print(printable(f"Fabric {name} is up. `help` lists the commands, and Ctrl-D ends it."), flush=True)
    terminal = Terminal(sys.stdout, sys.stderr, lambda argv: _run(argv, interactive))
    failed = False
    for line in _typed(f"{name}> ") if interactive else sys.stdin:
        if (text := line.strip()) in _LEAVING:
            break
        if text == "help":
            terminal.write(_help())
            continue
        try:
            words = words_of(text, console.nodes)
        except ValueError as error:
            print(lines_of(error), file=sys.stderr, flush=True)
            failed = True
            continue
        if words and console.run(words, terminal):
            failed = True
    return failed and not interactive


def words_of(line: str, nodes: Sequence[str]) -> list[str]:
    """The words of a command; none for an empty line or a comment.

    What follows the name of a node is a command line of a shell there: pipes, quotes and `&` are the shell's. Raises
    ValueError for a quotation without end.
    """
    first, _, rest = line.strip().partition(" ")
    if first in COMMANDS:
        return [first, rest] if COMMANDS[first].takes_text else shlex.split(line, comments=True)
    if first in nodes:
        return ["exec", first, "sh", "-c", rest] if rest.strip() else ["exec", first]
    return shlex.split(line, comments=True)


def _run(argv: Sequence[str], interactive: bool) -> int:
    """Run a program on the terminal, or without input where commands come from a file."""
    program = subprocess.Popen(argv, stdin=None if interactive else subprocess.DEVNULL)
    status = program.wait()
    return status if status >= 0 else 128 - status


def _typed(prompt: str) -> Iterator[str]:
    """The lines that a user types. Ctrl-C drops a line, and Ctrl-D ends them.

    Ctrl-C while a command runs reaches its program too, which ends by it, and does nothing here. Unlike SIG_IGN, a
    handler is not inherited by programs.
    """

    def interrupted(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is _line.__code__:  # elsewhere it would end this process
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    while True:
        try:
            line = _line(prompt)
        except KeyboardInterrupt:
            print(flush=True)
            continue
        if line is None:
            print(flush=True)
            return
        yield line


def _line(prompt: str) -> str | None:
    """A line from the terminal; None at the end of the input."""
    try:
        return input(prompt)
    except EOFError:
        return None


def _complete(console: FabricConsole) -> None:
    """Let the Tab key complete words."""
    found: list[str] = []

    def complete(incomplete: str, state: int) -> str | None:
        if state == 0:
            before = readline.get_line_buffer()[: readline.get_begidx()].split()
            found[:] = [f"{word} " for word in console.completions(before, incomplete)]
            if not before:
                found.extend(f"{word} " for word in ("help", *_LEAVING) if word.startswith(incomplete))
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t")  # a port such as leaf1:5 is one word
    readline.parse_and_bind("tab: complete")


def _help() -> str:
    rows = [(command.usage, command.help) for command in COMMANDS.values()]
    rows += [("NODE COMMAND", "a command line of a shell on a host or switch: h1 ping -c 3 h2")]
    rows += [("help, exit", "this list; the end, as Ctrl-D")]
    return "".join(f"{usage}\n    {what}\n" for usage, what in rows)
