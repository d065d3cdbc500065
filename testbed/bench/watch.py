# SPDX-License-Identifier: Apache-2.0
"""What `paralet top` costs a run that it watches: with the view, and with the view stopped, in turn in the same run.

The emulated fabric needs root and is left out without it.
"""

import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

import emul
from hostlib import Device, Faults
from testbed.analysis import results
from testbed.bench.frame import Measurement, Result, result
from testbed.bench.stress import goodput_gbps
from testbed.errors import TestbedError
from testbed.live.runs_so_far import Finished, entries
from testbed.progress import Steps

PEER = "the view stopped"
_PAIRS = 8
_LOOPBACK_S = 2.0
_MESSAGE_BYTES = 256 << 10
_SPEC = {
    "name": "watched",
    "topology": {"leaf_spine": {"leaves": 4, "spines": 4, "hosts_per_leaf": 4, "host_rate": "10 Mbit/s"}},
    "workload": {"kind": "ring_allreduce", "bytes": 1_572_864, "slices": 4},
    "placement": {"rule": "cross_leaf", "ranks": 16},
    "policies": [{"name": "pinned", "policy": "pinned"}],  # its completion depends least on the seed
    "path_mtu": 4096,
}
_POLL_S = 0.05


def measure() -> Result:
    """All cases, `_PAIRS` pairs of each. Raises TestbedError when a run fails."""
    with Steps(2, every_s=3.0) as progress:
        progress.now("two devices on loopback")
        measurements = list(loopback(_PAIRS, _LOOPBACK_S))
        progress.advance()
        progress.now("an emulated fabric")
        if all(finding.ok for finding in emul.probe()):
            measurements += emulated(_PAIRS)
        progress.advance()
    return result("watch", measurements)


def loopback(pairs: int, seconds: float) -> Iterator[Measurement]:
    """Goodput of two devices of one process, which use all of a processor."""
    message = bytes(_MESSAGE_BYTES)
    with Device("127.0.0.1"), _view([str(os.getpid())]) as view:  # the view needs a device to show
        for pair in range(pairs):
            values = {}
            for watched in (True, False) if pair % 2 else (False, True):
                view.send_signal(signal.SIGCONT if watched else signal.SIGSTOP)
                values[watched] = goodput_gbps(message, Faults(), seconds)
            yield Measurement("goodput", "loopback, 8 lanes", "Gbit/s", values[True], values[False], PEER)


def emulated(pairs: int) -> list[Measurement]:
    """Completion times of a ring all-reduce among 16 hosts; every second seed is watched."""
    with tempfile.TemporaryDirectory() as place:
        folder, spec_file = Path(place, "watched"), Path(place, "spec.yaml")
        spec_file.write_text(yaml.safe_dump({**_SPEC, "seeds": 2 * pairs}))
        folder.mkdir()
        command = [sys.executable, "-m", "testbed", "run", str(spec_file), "--results", place]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        journal = folder / results.JOURNAL
        _until(lambda: (folder / results.SPEC).exists() or run.poll() is not None)
        with _view(["--run", str(folder)]) as view:
            done = -1
            while run.poll() is None:
                finished = _finished(journal)
                if len(finished) != done:
                    done = len(finished)
                    view.send_signal(signal.SIGCONT if _watched(done) else signal.SIGSTOP)
                time.sleep(_POLL_S)
        assert run.stderr is not None
        said = run.stderr.read()
        run.stderr.close()
        if run.returncode != 0:
            raise TestbedError(f"the watched run failed: {said.strip().splitlines()[-1] if said else run.returncode}")
        took = [entry.completion_s for entry in _finished(journal)]
    ours, peer = (
        [run_s for number, run_s in enumerate(took) if _watched(number) == watched] for watched in (True, False)
    )
    return [
        Measurement("completion time", "emulated ring of 16 hosts", "s", one, other, PEER)
        for one, other in zip(ours, peer, strict=True)
    ]


def _watched(number: int) -> bool:
    """Whether this run is watched: in pairs whose order alternates, so that drift affects both alike."""
    return number % 4 in (1, 2)


def _finished(journal: Path) -> list[Finished]:
    try:
        with journal.open() as lines:
            return [entry for entry in entries(lines) if isinstance(entry, Finished)]
    except FileNotFoundError:
        return []


def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(_POLL_S)


@contextmanager
def _view(arguments: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """`paralet top` on a terminal of its own, once it has drawn something."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "testbed", "top", *arguments]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    drawn = threading.Event()

    def drain() -> None:
        seen = b""
        while True:
            try:
                seen = seen[-4096:] + os.read(master, 1 << 16)
            except OSError:
                drawn.set()
                return
            if b"Mbit/s" in seen:
                drawn.set()

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    try:
        drawn.wait()
        if process.poll() is not None:
            raise TestbedError("the view did not start")
        yield process
    finally:
        process.kill()
        process.wait()
        thread.join()
        os.close(master)
