# SPDX-License-Identifier: Apache-2.0
"""The commands on a fabric that is up. `COMMANDS` is the table of all."""

import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from netmodel import PortRef
from netmodel.printable import printable_lines
from testbed.errors import InputError, TestbedError, lines_of, sentence_of
from testbed.run.console.fabric import ConsoleFabric, node_names
from testbed.run.console.link_changes import USAGE as LINK_USAGE
from testbed.run.console.link_changes import change_of, node_of, port_of
from testbed.run.console.tables import columns, links_table, nodes_table
from testbed.run.console.terminal import Terminal
from testbed.run.console.views import links_of, neighbours_of, nodes_of
from testbed.run.events import faults_of
from testbed.run.failures import fabric_errors
from testbed.spec import LinkSettings

_LINKS_USAGE = "links [--json | PORT|NODE NODE CHANGE]"


class FabricConsole:
    """Carries out commands on a fabric. Threads may share it.

    changed: called with each change of the fabric, in words.
    """

    def __init__(self, fabric: ConsoleFabric, log_dir: Path, changed: Callable[[str], None] = lambda _: None) -> None:
        self.fabric = fabric
        self.changed = changed
        self._log_dir = log_dir
        self._naming = threading.Lock()
        self._named = False

    def run(self, words: Sequence[str], terminal: Terminal) -> int:
        """Carry out a command. Its exit status: 0, 2 for a wrong request, or 1 for a failure; errors are printed."""
        try:
            if words[0] not in COMMANDS:
                raise InputError(f"{words[0]!r} is no command: use one of {', '.join(COMMANDS)}")
            with fabric_errors(self._log_dir):
                return COMMANDS[words[0]].act(self, words[1:], terminal)
        except InputError as error:
            return _said(terminal, error, 2)
        except TestbedError as error:
            return _said(terminal, error, 1)

    def enter(self, node: str) -> list[str]:
        """The argv prefix that runs a program on a node, where hosts know each other by name. Raises FabricError."""
        with self._naming:
            if not self._named:
                self.fabric.name_hosts()
                self._named = True
        return self.fabric.enter(node)

    @property
    def nodes(self) -> list[str]:
        """The names of all hosts and switches."""
        return node_names(self.fabric.topology)

    def completions(self, words: Sequence[str], incomplete: str) -> list[str]:
        """What may follow the complete `words` of a command, of what begins with `incomplete`."""
        if not words:
            found: Iterable[str] = (*COMMANDS, *self.nodes)
        elif words[0] in COMMANDS:
            found = COMMANDS[words[0]].next(self, words[1:])
        else:
            found = ()
        return sorted(word for word in found if word.startswith(incomplete))


def _said(terminal: Terminal, error: Exception, status: int) -> int:
    print(lines_of(error), file=terminal.errors, flush=True)
    return status


def _is_json(words: Sequence[str], usage: str) -> bool:
    """Whether the answer is to be JSON. Raises InputError for other words."""
    if list(words) not in ([], ["--json"]):
        raise InputError(f"usage: {usage}")
    return bool(words)


def _nodes(console: FabricConsole, words: Sequence[str], terminal: Terminal) -> int:
    as_json = _is_json(words, "nodes [--json]")
    found = nodes_of(console.fabric)
    terminal.write(f"{json.dumps(found)}\n" if as_json else nodes_table(found))
    return 0


def _links(console: FabricConsole, words: Sequence[str], terminal: Terminal) -> int:
    if words and words[0] != "--json":
        return _link(console, words, terminal)
    as_json = _is_json(words, _LINKS_USAGE)
    found = links_of(console.fabric.link_states())
    terminal.write(f"{json.dumps(found)}\n" if as_json else links_table(found))
    return 0


def _net(console: FabricConsole, words: Sequence[str], terminal: Terminal) -> int:
    if words:
        raise InputError("usage: net")
    found = neighbours_of(console.fabric.topology)
    terminal.write(columns([(node, ", ".join(ports)) for node, ports in found.items()]))
    return 0


def _rules(console: FabricConsole, words: Sequence[str], terminal: Terminal) -> int:
    switches = [switch.name for switch in console.fabric.topology.switches]
    if len(words) != 1 or words[0] not in switches:
        raise InputError(f"usage: rules SWITCH, where SWITCH is one of {', '.join(switches)}")
    terminal.write(printable_lines(console.fabric.rules(words[0])))
    return 0


def _link(console: FabricConsole, words: Sequence[str], terminal: Terminal) -> int:
    fabric = console.fabric
    change = change_of(fabric.topology, words)
    for link in change.links:
        if change.up is not None:
            fabric.set_link(link, change.up)
        if change.part is not None:
            fabric.set_rate(link, change.part)
    if change.settings is not None:
        settings: LinkSettings = change.settings
        for port, fault in faults_of({str(port): settings for port in change.ports}).items():
            fabric.set_faults(port, fault)
    console.changed(change.what)
    return 0


def _exec(console: FabricConsole, words: Sequence[str], terminal: Terminal) -> int:
    if len(words) < 2:
        raise InputError("usage: exec NODE PROGRAM [ARGUMENT..]")
    node = node_of(console.fabric.topology, words[0])
    return _run(terminal, [*console.enter(node), *words[1:]])


def _capture(console: FabricConsole, words: Sequence[str], terminal: Terminal) -> int:
    if not words:
        raise InputError("usage: capture PORT [-w FILE] [OPTION OF tcpdump..] [FILTER..]")
    port = port_of(console.fabric.topology, words[0])
    # -l: lines as they come. -U: so in a file. -Z root: otherwise it drops root before it opens the file.
    argv = ["tcpdump", "-i", console.fabric.interface(port), "-n", "-l", "-U", "-Z", "root", *words[1:]]
    return _run(terminal, [*console.enter(port.node), *argv])


def _py(console: FabricConsole, words: Sequence[str], terminal: Terminal) -> int:
    fabric = console.fabric
    with _interruptible():
        try:
            value = eval(" ".join(words), {"fabric": fabric, "topology": fabric.topology, "PortRef": PortRef})
        except (Exception, SystemExit) as error:
            raise InputError(f"{type(error).__name__}: {error}") from error
    if value is not None:
        terminal.write(f"{value!r}\n")
    return 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lets Ctrl-C end what runs, as it ends programs: the prompt's own handler keeps it from this process.

    Raises InputError then, or KeyboardInterrupt where there is no such handler. Other threads get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        if before is signal.default_int_handler:
            raise
        raise InputError("interrupted") from None
    finally:
        signal.signal(signal.SIGINT, before)


def _run(terminal: Terminal, argv: Sequence[str]) -> int:
    try:
        return terminal.run(argv)
    except FileNotFoundError as error:
        raise TestbedError(f"{error.filename} is not installed") from error
    except OSError as error:
        raise TestbedError(sentence_of(error)) from error


def _no_word(_console: FabricConsole, _words: Sequence[str]) -> Iterable[str]:
    return ()


def _a_node(console: FabricConsole, words: Sequence[str]) -> Iterable[str]:
    return () if words else console.nodes


def _a_switch(console: FabricConsole, words: Sequence[str]) -> Iterable[str]:
    return () if words else [switch.name for switch in console.fabric.topology.switches]


def _a_port(console: FabricConsole, words: Sequence[str]) -> Iterable[str]:
    return () if words else map(str, console.fabric.topology.linked_ports())


def _a_link(console: FabricConsole, words: Sequence[str]) -> Iterable[str]:
    """A port, or two nodes; then what is to change."""
    topology = console.fabric.topology
    if not words:
        return [*console.nodes, *map(str, topology.linked_ports())]
    if len(words) == 1 and ":" not in words[0]:
        ends = ({link.a.node, link.b.node} for link in topology.links)
        return {node for pair in ends if words[0] in pair for node in pair - {words[0]}}
    first = 1 if ":" in words[0] else 2
    return (*LinkSettings.model_fields, *(("up", "down", "rate", "clear") if len(words) == first else ()))


def _a_link_or_json(console: FabricConsole, words: Sequence[str]) -> Iterable[str]:
    if words[:1] == ["--json"]:
        return ()
    return (*(() if words else ("--json",)), *_a_link(console, words))


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the console."""

    usage: str
    help: str
    act: Callable[[FabricConsole, Sequence[str], Terminal], int]
    """Carries it out; its words are those after its name. The exit status. Raises the errors of `testbed.errors`."""
    next: Callable[[FabricConsole, Sequence[str]], Iterable[str]] = _no_word
    """The words that may follow others, for completion."""
    takes_text: bool = False
    """What follows its name is one word, whatever quotes and spaces are in it."""


COMMANDS = {
    "nodes": Command(
        "nodes [--json]", "hosts and switches: addresses, and a process in the namespaces of each", _nodes
    ),
    "net": Command("net", "what is plugged into each port", _net),
    "links": Command(
        _LINKS_USAGE,
        "links: whether they are up, their rates and faults; or as link, a change",
        _links,
        _a_link_or_json,
    ),
    "rules": Command(
        "rules SWITCH", "what a switch forwards by: OpenFlow groups and flows, or routes", _rules, _a_switch
    ),
    "link": Command(
        LINK_USAGE,
        "cut, mend or slow links; faults of the packets that leave by a port",
        _link,
        _a_link,
    ),
    "capture": Command("capture PORT [-w FILE] [FILTER..]", "packets at a port, by tcpdump", _capture, _a_port),
    "py": Command(
        "py EXPRESSION", "the value of a Python expression with fabric, topology and PortRef", _py, takes_text=True
    ),
    "exec": Command("exec NODE PROGRAM [ARGUMENT..]", "run a program on a host or switch", _exec, _a_node),
}
"""By name: the commands at the prompt of `paralet shell`, which other processes can give too."""
