# SPDX-License-Identifier: Apache-2.0
"""Answer times of the path service under the load of thousands of hosts: from an announcement to its ports.

`paralet bench path-service` runs all measurements. `python -m testbed.bench.path_service --hosts 20000 --per-host 1`
takes another number of hosts, beside an operator whose changes are on the disk before they are answered, and prints a
row of a table in Markdown. With `--tls` lines travel by TLS. With `--pings` hosts ping, and do not announce.

The service has one core to itself. This process simulates all hosts on other cores, each with its own connection. The
load is an open loop: a host announces at fixed times, whether or not earlier announcements were answered. It announces
an elephant to the next host of a ring, as in an all-reduce, and releases its previous elephant. Two times are measured:
from when the announcement was due, and from when it was sent, both until the answer was read. The simulated hosts may
themselves be late: the real time is no shorter than until they last looked for answers before. The peer is an echo
server, which reads the same bytes and answers with a line of the same length. It shows the cost of sockets and event
loop alone.

Two more measurements have one host that announces, beside a faulty one whose announcements are as much work as one
host's can be; the peer is the same host alone. The last ones have an operator who changes something all the time: each
change is written to the disk before it is answered, or, as the peer, forgotten.
"""

import argparse
import asyncio
import gc
import os
import random
import re
import select
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias, cast

import uvloop

from netmodel import Topology, leaf_spine
from netmodel.printable import printable
from sdn.path_service import admin, messages
from sdn.path_service.limits import Limits
from sdn.path_service.run import Place, raise_file_limit, serve
from sdn.path_service.service import Options
from sdn.path_service.tls import TlsChannels, TlsFiles
from testbed.bench.certificates import Certificates
from testbed.bench.frame import Measurement, Result, result
from testbed.errors import InputError, TestbedError
from testbed.machine import this_machine
from testbed.progress import Steps

TOKEN = "a token for this machine only"
REPETITIONS = 3
LANES = 8
_WARM_ROUNDS = 3
_TIMEOUT_S = 120.0
_BATCH = 32  # announcements sent before answers are read
_MOST_READY = 512  # hosts whose answers are read before more is sent
_FAULTY_LANES = 1024
_FAULTY_PER_S = 500  # announcements of the faulty host: all that the service reads from one
_FAULTY_EVERY_S = 0.05
_SOCKET = "admin.sock"
_CHANGE_EVERY_S = 0.5  # of an operator
_HOST_EVERY_S = 0.005  # between an answer to the host beside it and its next announcement


@dataclass(frozen=True, slots=True)
class Load:
    """Number of hosts, announcements per host and second, duration in seconds, and the size of the Clos."""

    hosts: int = 5_000
    per_host_s: float = 10.0
    seconds: float = 10.0
    leaves: int = 160
    spines: int = 32
    tls: bool = False
    pings: bool = False
    """Hosts ping, and announce nothing."""

    @property
    def case(self) -> str:
        what = " pings" if self.pings else ""
        return f"{self.hosts} hosts, {self.per_host_s:g}{what}/s each{', TLS' if self.tls else ''}"

    def topology(self) -> Topology:
        return leaf_spine(self.leaves, self.spines, -(-self.hosts // self.leaves), 100 * 10**9)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer times of one run in seconds, sorted."""

    due: list[float]
    """Times from when the announcement was due."""
    sent: list[float]
    """Times from when the announcement was sent."""
    least: list[float]
    """Lower bounds of `sent`: until the last time before at which the hosts looked for answers in vain."""
    cpu_s: float
    """Processor time of the server in seconds."""
    span_s: float
    idle_s: float
    """How long the simulated hosts had nothing to do: where it is little, they are late, and not the server."""

    def quantile(self, part: float) -> float:
        """That of the times from when the announcement was due."""
        return _quantile(self.due, part)


def measure() -> Result:
    """Run the benchmark. Raises InputError with too few file descriptors, TestbedError when an answer is missing."""
    load = Load()
    with Steps(4 * REPETITIONS, every_s=3.0) as steps:
        measurements: list[Measurement] = []
        for measurement in run(load, REPETITIONS, steps.now):
            steps.advance()
            measurements += measurement
        for _ in range(REPETITIONS):
            steps.now("beside a faulty host")
            measurements += beside_faulty()
            steps.advance()
        for repetition in range(REPETITIONS):
            steps.now("with changes of an operator")
            measurements += beside_operator(load, seed=repetition)
            steps.advance()
    return result("path-service", measurements)


def run(load: Load, repetitions: int, tell: Callable[[str], None] = lambda text: None) -> Iterator[list[Measurement]]:
    """Measures service and peer alternately, so that changes of the machine's speed affect both."""
    topology = load.topology()
    with _core_of_its_own(load) as core:
        for repetition in range(repetitions):
            outcomes = []
            for kind, server in (("the service", _service), ("the echo", _echo)):
                tell(f"{load.case}: {kind}")
                with (
                    _started(server, topology, core) as (port, pid),
                    closing(_Hosts(load, topology, port, seed=repetition)) as hosts,
                ):
                    outcomes.append(hosts.play(pid))
            yield list(_measurements(load, *outcomes))


def beside_faulty(seconds: float = 5.0) -> list[Measurement]:
    """Answer times of one host, beside a faulty one and alone, for so many seconds each."""
    core = min(os.sched_getaffinity(0))
    topology = leaf_spine(4, 8, 8, 100 * 10**9)
    with _started(_service, topology, core) as (port, _):
        alone = _answer_times(port, topology, seconds)
        with _started(partial(_faulty_host, port), topology, core) as _:
            beside = _answer_times(port, topology, seconds)
    case = f"beside {_FAULTY_PER_S}/s of {_FAULTY_LANES} lanes to changing ports"
    return [
        Measurement(f"answer, {name}", case, "ms", 1e3 * _quantile(beside, part), 1e3 * _quantile(alone, part), "alone")
        for name, part in (("median", 0.5), ("99th", 0.99))
    ]


def beside_operator(load: Load, seed: int = 0) -> list[Measurement]:
    """Answer times while an operator's changes are written to a store, and while they are not."""
    stored, unstored = (played(load, seed, has_operator=True, is_stored=each) for each in (True, False))
    case = f"{load.case}, {1 / _CHANGE_EVERY_S:g} changes/s"
    found = []
    for name, part in (("median", 0.5), ("99th", 0.99)):
        ours, peer = 1e3 * stored.quantile(part), 1e3 * unstored.quantile(part)
        found.append(Measurement(f"answer, {name}", case, "ms", ours, peer, "unstored"))
    return found


def played(load: Load, seed: int, *, has_operator: bool, is_stored: bool) -> Outcome:
    """One run against a service, beside an operator or not."""
    topology = load.topology()
    with ExitStack() as opened:
        core = opened.enter_context(_core_of_its_own(load))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        certificates = None
        if load.tls:
            (folder / "tls").mkdir()
            addresses = [str(host.nics[0].address) for host in topology.hosts]
            certificates = Certificates(folder / "tls", "127.0.0.1", addresses)
        files = None if certificates is None else certificates.service
        service = partial(_service, folder=folder, state=folder / "state" if is_stored else None, files=files)
        port, pid = opened.enter_context(_started(service, topology, core))
        hosts = opened.enter_context(closing(_Hosts(load, topology, port, seed, certificates)))
        if has_operator:
            operator = partial(_operator, folder / _SOCKET)
            opened.enter_context(_started(operator, topology, max(os.sched_getaffinity(0))))
        return hosts.play(pid)


@contextmanager
def _core_of_its_own(load: Load) -> Iterator[int]:
    """A core for the server; this process keeps to the others. Raises InputError with too few file descriptors."""
    if raise_file_limit() < load.hosts + 100:
        raise InputError(f"{load.hosts} hosts need one file descriptor each: ulimit -Hn {load.hosts + 100}")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)
    try:
        yield cores[0]
    finally:
        os.sched_setaffinity(0, cores)


def _operator(path: Path, ready: Connection, topology: Topology, core: int) -> None:
    """Pins a pair of hosts and ends that again, until it is ended."""
    os.sched_setaffinity(0, {core})
    src, dst = topology.hosts[0].name, topology.hosts[-1].name
    upper = next(switch.name for switch in reversed(topology.switches) if not topology.has_host(switch.name))
    ready.send(0)
    while True:
        for request in (admin.Pin(TOKEN, src, dst, (upper,)), admin.Unpin(TOKEN, src, dst)):
            admin.ask(path, request)
            time.sleep(_CHANGE_EVERY_S)


def _quantile(ordered: list[float], part: float) -> float:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def _answer_times(port: int, topology: Topology, seconds: float) -> list[float]:
    """The times in seconds from an announcement to its answer, of a host that announces to another, sorted."""
    peer = str(topology.hosts[5].nics[0].address).encode()
    times: list[float] = []
    with _host(port, topology, 30, LANES, "127.0.0.1") as connection, connection.makefile("rb") as said:
        end_s = time.perf_counter() + seconds
        for number in count(1):
            begin_s = time.perf_counter()
            if begin_s > end_s:
                return sorted(times)
            connection.sendall(_announcement(number, peer))
            while answered(said.readline()) != number:
                pass
            times.append(time.perf_counter() - begin_s)
            time.sleep(_HOST_EVERY_S)
    raise AssertionError("counting does not end")


def _faulty_host(port: int, ready: Connection, topology: Topology, core: int) -> None:
    """Announces elephants over very many lanes, each to another port of its peers, until it is ended."""
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - {core} or {core})
    peers = [str(host.nics[0].address).encode() for host in topology.hosts[8:24]]
    with _host(port, topology, 0, _FAULTY_LANES, "127.0.0.2") as connection:
        ready.send(port)
        for number in count():
            peer = peers[number % len(peers)]
            line = b'{"type":"announce","id":%d,"peer":"%b","bytes":1,"peer_port":%d}\n'
            connection.sendall(line % (number % 200, peer, 1 + number % 0xFFFF))
            if number % int(_FAULTY_PER_S * _FAULTY_EVERY_S) == 0:
                time.sleep(_FAULTY_EVERY_S)
                while select.select([connection], [], [], 0)[0] and connection.recv(1 << 20):
                    pass


def _host(port: int, topology: Topology, number: int, lanes: int, source: str) -> socket.socket:
    """A connection of a host of the topology that has said hello, from a loopback address of its own."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S, source_address=(source, 0))
    address = str(topology.hosts[number].nics[0].address)
    connection.sendall(messages.to_line(messages.Hello(messages.VERSIONS[0], TOKEN, address, f"{number:016x}", lanes)))
    return connection


def _announcement(number: int, peer: bytes) -> bytes:
    """The release of a host's last elephant, and the announcement of the next one."""
    return b'{"type":"release","id":%d}\n{"type":"announce","id":%d,"peer":"%b","bytes":104857600,"job":"ring"}\n' % (
        number - 1,
        number,
        peer,
    )


def _ping(number: int, peer: bytes) -> bytes:
    return b'{"type":"ping","nonce":%d}\n' % number


def _measurements(load: Load, ours: Outcome, peer: Outcome) -> Iterator[Measurement]:
    def measured(metric: str, unit: str, value: Callable[[Outcome], float]) -> Measurement:
        return Measurement(metric, load.case, unit, value(ours), value(peer), "echo")

    yield measured("answer, median", "ms", lambda o: 1e3 * o.quantile(0.5))
    yield measured("answer, 99th", "ms", lambda o: 1e3 * o.quantile(0.99))
    yield measured("answer after sending, median", "ms", lambda o: 1e3 * o.sent[len(o.sent) // 2])
    yield measured("answer after sending, 99th", "ms", lambda o: 1e3 * o.sent[int(0.99 * len(o.sent))])
    yield measured("processor time per announcement", "us", lambda o: 1e6 * o.cpu_s / len(o.due))
    yield measured("core in use", "%", lambda o: 100 * o.cpu_s / o.span_s)
    yield measured("core of the hosts in use", "%", lambda o: 100 - 100 * o.idle_s / o.span_s)


class _Hosts:
    """All simulated hosts, connected and past their hello."""

    def __init__(
        self, load: Load, topology: Topology, port: int, seed: int, certificates: Certificates | None = None
    ) -> None:
        self._load = load
        self._said = _ping if load.pings else _announcement
        self._rng = random.Random(seed)
        addresses = [str(host.nics[0].address) for host in topology.hosts]
        places = self._rng.sample(range(len(addresses)), load.hosts)
        ring = [addresses[place] for place in places]
        self._sockets: list[socket.socket] = []
        self._next = [ring[(i + 1) % load.hosts].encode() for i in range(load.hosts)]
        self._epoll = select.epoll()
        self._partial = [b""] * load.hosts
        self._ids = [0] * load.hosts
        for i, address in enumerate(ring):
            hello = messages.Hello(messages.VERSIONS[0], TOKEN, address, f"{i:016x}", LANES)
            connection = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if certificates is not None:
                connection = certificates.of(places[i]).wrap_socket(connection, server_hostname="127.0.0.1")
            connection.sendall(messages.to_line(hello))
            connection.setblocking(False)
            self._sockets.append(connection)
        self._host_of = {connection.fileno(): i for i, connection in enumerate(self._sockets)}
        for connection in self._sockets:
            self._epoll.register(connection.fileno(), select.EPOLLIN)
        gc.freeze()  # otherwise a collection of all of these would delay what is sent

    def close(self) -> None:
        gc.unfreeze()
        for connection in self._sockets:
            connection.close()
        self._epoll.close()

    def play(self, pid: int) -> Outcome:
        """Run the warm-up rounds, in which the service hashes ports for new pairs, then the measured rounds."""
        answered, deadline_s = 0, time.perf_counter() + _TIMEOUT_S
        for round_number in range(_WARM_ROUNDS):
            for i in range(self._load.hosts):
                self._announce(i)
                if i % _BATCH == 0:
                    answered += len(self._answers())
            while answered < (round_number + 1) * self._load.hosts:
                answered += len(self._answers())
                if time.perf_counter() > deadline_s:
                    raise TestbedError(f"the first announcements were not answered within {_TIMEOUT_S:g} s")
        period_s = 1 / self._load.per_host_s
        phases = sorted((self._rng.random() * period_s, i) for i in range(self._load.hosts))
        rounds = round(self._load.seconds / period_s)
        due_s: dict[tuple[int, int], tuple[float, float]] = {}
        due, sent, least = [], [], []
        clock = time.perf_counter
        cpu_s = _cpu_s(pid)
        begin_s = clock() + 0.1
        schedule = ((begin_s + r * period_s + phase, i) for r in range(rounds) for phase, i in phases)
        idle_s, deadline_s = 0.0, begin_s + self._load.seconds + _TIMEOUT_S
        looked_s = looks_s = begin_s  # when the hosts last saw that no answer waits, and look now
        at_s, host = next(schedule, (None, 0))
        while at_s is not None or due_s:
            now_s = clock()
            if now_s > deadline_s:
                raise TestbedError(f"{len(due_s)} announcements were not answered within {_TIMEOUT_S:g} s")
            waiting = 0
            while at_s is not None and at_s <= now_s and waiting < _BATCH:
                number = self._announce(host)
                due_s[host, number] = at_s, clock()
                waiting += 1
                at_s, host = next(schedule, (None, 0))
            looked_s, looks_s = looks_s, clock()
            answers = self._answers()
            if now_s >= begin_s and not waiting and not answers:
                idle_s += clock() - now_s
            for i, number in answers:
                times = due_s.pop((i, number), None)
                if times is not None:
                    now_s = clock()
                    due.append(now_s - times[0])
                    sent.append(now_s - times[1])
                    least.append(max(0.0, looked_s - times[1]))
            if len(answers) >= _MOST_READY:  # more may wait
                looks_s = looked_s
        span_s = clock() - begin_s
        return Outcome(sorted(due), sorted(sent), sorted(least), _cpu_s(pid) - cpu_s, span_s, idle_s)

    def _announce(self, i: int) -> int:
        """Release the host's last elephant and announce the next one, or ping. Returns the number in the answer."""
        number = self._ids[i] = self._ids[i] + 1
        self._sockets[i].send(self._said(number, self._next[i]))
        return number

    def _answers(self) -> list[tuple[int, int]]:
        """Host and id of every answer that can be read now."""
        answers = []
        for descriptor, _ in self._epoll.poll(0, _MOST_READY):
            i = self._host_of[descriptor]
            try:
                data = self._sockets[i].recv(65536)
            except ssl.SSLWantReadError:  # a part of a record
                continue
            if not data:
                raise TestbedError("the server closed a connection")
            lines = (self._partial[i] + data).split(b"\n")
            self._partial[i] = lines.pop()
            for line in lines:
                if (number := answered(line)) is not None:
                    answers.append((i, number))
                elif b'"error"' in line:
                    raise TestbedError(f"the server answered with an error: {line.decode()}")
        return answers


def answered(line: bytes) -> int | None:
    """The elephant's id in an answer of the service, or a ping's number, at any position; None without one."""
    found = re.search(rb'"(?:id|nonce)":(\d+)', line)
    return int(found[1]) if found else None


@contextmanager
def _started(server: "_Server", topology: Topology, core: int) -> Iterator[tuple[int, int]]:
    """Run a server on its own core; yields its port and process id."""
    context = get_context("spawn")  # this process may have threads
    here, there = context.Pipe()
    process = context.Process(target=server, args=(there, topology, core), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(_TIMEOUT_S):
            raise TestbedError(f"the server did not start within {_TIMEOUT_S:g} s")
        assert process.pid is not None  # it was started
        yield here.recv(), process.pid
    except EOFError:
        raise TestbedError("the server ended before it was ready") from None
    finally:
        process.terminate()
        process.join()


_Server: TypeAlias = Callable[[Connection, Topology, int], None]


def _service(
    ready: Connection,
    topology: Topology,
    core: int,
    folder: Path | None = None,
    state: Path | None = None,
    files: TlsFiles | None = None,
) -> None:
    os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory() as own:
        place = Place("127.0.0.1", 0, (folder or Path(own)) / _SOCKET)
        limits = Limits(silent_s=2 * _TIMEOUT_S)  # hosts do not ping during the warm-up
        told = partial(_told, ready)
        channels = None if files is None else TlsChannels(files)
        serve(topology, Options(), TOKEN, place, limits=limits, state=state, channels=channels, ready=told)


def _told(ready: Connection, address: str, port: int) -> None:
    ready.send(port)


def _echo(ready: Connection, topology: Topology, core: int) -> None:
    """Answers every announcement with a line as long as the service's."""
    os.sched_setaffinity(0, {core})
    raise_file_limit()

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast(asyncio.Transport, transport)

        def data_received(self, data: bytes) -> None:
            for line in data.split(b"\n"):
                _, announced, rest = line.partition(b'"announce","id":')
                if announced:
                    number = rest.partition(b",")[0]
                    self.transport.write(b'{"type":"assign","peer":"10.100.100.1",%80d,"id":%b}\n' % (0, number))

    async def serve_echo() -> None:
        server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=4096)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_echo())


def _cpu_s(pid: int) -> float:
    """Processor time that a process has used, in seconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def main() -> None:
    """Measures one load, with an operator whose changes are stored and with one whose are not; or pings."""
    parser = argparse.ArgumentParser(description=printable(str(__doc__).partition("\n\n")[0]))
    usual = Load()
    parser.add_argument("--hosts", type=int, default=usual.hosts)
    parser.add_argument("--per-host", type=float, default=usual.per_host_s, help="announcements or pings a second")
    parser.add_argument("--seconds", type=float, default=usual.seconds)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--pings", action="store_true")
    chosen = parser.parse_args()
    load = Load(chosen.hosts, chosen.per_host, chosen.seconds, tls=chosen.tls, pings=chosen.pings)
    outcomes = [
        played(load, 0, has_operator=not load.pings, is_stored=is_stored)
        for is_stored in ((True,) if load.pings else (True, False))
    ]
    print(printable(f"{this_machine()}, {os.getloadavg()[0]:.0f} other processes ran"))
    print(
        "\n| hosts, each | answers: median, 99th | 99th since sent, at least | core of the service, each "
        "| core of the hosts |"
    )
    print("|---|---|---|---|---|")
    for outcome, kind in zip(outcomes, ("stored", "forgotten"), strict=False):
        each = "" if load.pings else f", changes {kind}"
        times = f"{1e3 * outcome.quantile(0.5):.2f}, {1e3 * outcome.quantile(0.99):.1f} ms"
        since_sent = f"{1e3 * _quantile(outcome.sent, 0.99):.1f}, {1e3 * _quantile(outcome.least, 0.99):.1f} ms"
        core = f"{100 * outcome.cpu_s / outcome.span_s:.0f} %, {1e6 * outcome.cpu_s / len(outcome.due):.1f} us"
        hosts = f"{100 - 100 * outcome.idle_s / outcome.span_s:.0f} %"
        print(printable(f"| {load.case}{each} | {times} | {since_sent} | {core} | {hosts} |"))


if __name__ == "__main__":
    main()
