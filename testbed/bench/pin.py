# SPDX-License-Identifier: Apache-2.0
"""What `paralet pin` costs a program: the same one with planned ports and without, in turn in the same run.

All is on loopback. The ports are given (`PARALET_PORTS`), so no path service is asked. iperf3 is left out where it is
missing.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context

from testbed.bench.frame import Measurement, Result, result
from testbed.errors import TestbedError
from testbed.progress import Steps

PEER = "without"
CONNECTIONS = 10_000
PAIRS = 8
SECONDS = 3
_PEERS = 500  # addresses of loopback: a connection gets a port of its own without waiting for an earlier one to end
_STREAMS = 8
_NETWORKS = "127.0.0.0/8"
_LEAST_PLANNED = 0.95  # others may have ports in this range, too
_FIRST_PORT = 61001  # beyond those that the kernel chooses
_CONNECTING = """\
import os, socket, struct, sys, time
port, count, peers, first, ranks = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), *map(int, sys.argv[4:])
reset = struct.pack("ii", 1, 0)  # closed without TIME_WAIT
processors = sorted(os.sched_getaffinity(0))
out, into = os.pipe()

def connect(peers):
    took_s, planned = 0.0, 0
    for number in range(count):
        one = socket.socket()
        start_s = time.perf_counter()
        one.connect((peers[number % len(peers)], port))
        took_s += time.perf_counter() - start_s
        planned += one.getsockname()[1] >= first
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        one.close()
    os.write(into, struct.pack("dd", took_s / count, planned / count))

for rank in range(ranks):
    if os.fork() == 0:
        if ranks > 1:
            os.sched_setaffinity(0, [processors[rank % len(processors)]])
        connect(peers[rank::ranks])
        os._exit(0)
os.close(into)
print(*(sum(each) / ranks for each in zip(*(struct.unpack("dd", os.read(out, 16)) for _ in range(ranks)))))
"""


def measure() -> Result:
    """All cases, `PAIRS` pairs of each. Raises TestbedError when a program fails."""
    with Steps(3, every_s=3.0) as progress:
        progress.now("connections")
        measurements = list(connections(PAIRS, CONNECTIONS))
        progress.advance()
        progress.now("ranks that connect at once")
        measurements += connections(PAIRS, CONNECTIONS // 2, ranks=2)
        progress.advance()
        progress.now("iperf3")
        if shutil.which("iperf3"):
            measurements += iperf3(PAIRS, SECONDS)
        progress.advance()
    return result("pin", measurements)


def connections(pairs: int, count: int, ranks: int = 1) -> Iterator[Measurement]:
    """The mean time of a `connect`, one after the other, in each of so many ranks of a program, all at once.

    Several ranks are on processors of their own, as far as there are enough.
    """
    peers = [f"127.1.{number // 200}.{number % 200 + 1}" for number in range(_PEERS)]
    ports = ";".join(f"{peer}={_FIRST_PORT + number}" for number, peer in enumerate(peers))
    with socket.create_server(("", 0), backlog=4096) as server, _accepting(server):
        program = [sys.executable, "-c", _CONNECTING, str(server.getsockname()[1]), str(count), ",".join(peers)]
        program += [str(_FIRST_PORT), str(ranks)]
        case = f"{count:,} connections" if ranks == 1 else f"{count:,} connections of each of {ranks} ranks at once"
        for pair in range(pairs):
            took_us = {}
            for pinned in _order(pair):
                took_s, planned = map(float, _output(program, ports if pinned else None).split())
                if pinned and planned < _LEAST_PLANNED:
                    raise TestbedError(f"only {planned:.0%} of the connections had a planned port")
                took_us[pinned] = 1e6 * took_s
            yield Measurement("time per connect", case, "us", took_us[True], took_us[False], PEER)


def iperf3(pairs: int, seconds: int) -> Iterator[Measurement]:
    """Throughput of several connections, each time for so many whole seconds, at least 1."""
    ports = "127.0.0.2=" + ",".join(str(_FIRST_PORT + number) for number in range(_STREAMS + 1))
    for pair in range(pairs):
        values = {}
        for pinned in _order(pair):
            with socket.create_server(("127.0.0.2", 0)) as free:
                port = str(free.getsockname()[1])
            server = subprocess.Popen(
                ["iperf3", "-s", "-1", "-B", "127.0.0.2", "-p", port, "--forceflush"],
                stdout=subprocess.PIPE,
                text=True,
            )
            with server:
                assert server.stdout is not None
                while "listening" not in (line := server.stdout.readline()):
                    if not line:
                        raise TestbedError(f"iperf3 did not start at port {port}")
                words = ["iperf3", "-c", "127.0.0.2", "-p", port, "-P", str(_STREAMS), "-t", str(seconds), "-J"]
                said = json.loads(_output(words, ports if pinned else None))
                server.stdout.read()
            values[pinned] = said["end"]["sum_received"]["bits_per_second"] / 1e9
        yield Measurement("throughput", f"iperf3 -P {_STREAMS}", "Gbit/s", values[True], values[False], PEER)


def _order(pair: int) -> tuple[bool, bool]:
    """Whether ports are planned: in pairs whose order alternates, so that drift affects both alike."""
    return (True, False) if pair % 2 else (False, True)


def _output(program: list[str], ports: str | None) -> str:
    """Runs a program, under `paralet pin` where ports are given."""
    environment: Mapping[str, str] = {
        name: value for name, value in os.environ.items() if not name.startswith("PARALET_")
    }
    if ports is not None:
        program = [sys.executable, "-m", "testbed", "pin", "--networks", _NETWORKS, "--", *program]
        environment = {**environment, "PARALET_ADDRESSES": "127.0.0.1", "PARALET_PORTS": ports}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise TestbedError(f"{program[0]} ended with status {done.returncode}{': ' + said[-1] if said else ''}")
    return done.stdout


@contextmanager
def _accepting(server: socket.socket) -> Iterator[None]:
    """Takes and closes connections, in a process of its own."""
    process = get_context("fork").Process(target=_accept, args=(server,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _accept(server: socket.socket) -> None:
    while True:
        server.accept()[0].close()
