# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.bench.takeovers`: two path services, of which one fails again and again.

Both are processes, and so is each failure real: SIGKILL, SIGSTOP and later SIGCONT, or proxies that forward nothing any
more, one way or both. Hosts announce elephants all the time. For each failure: for how long no host got an answer, and
which service leads afterwards. After each, all hosts have the ports that the plan of the service that leads gives them,
and a drain holds. Prints a table in Markdown.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from netmodel import Flow, OvsHash, dump_topology, forwarding, leaf_spine, path_of
from netmodel.printable import printable
from sdn.path_service.admin import AdminError
from sdn.path_service.control.client import Operator
from sdn.path_service.token import make_token, read_token
from testbed.bench.takeover_hosts import At, BenchHost, Proxy
from testbed.errors import TestbedError
from testbed.machine import this_machine

FAILURES = "kill", "stop", "cut off", "no answers from it", "nothing to it", "cut between", "kill the other"
"""What is done to the service that leads, or to the way between the two, or to the other one."""
_TAKEN_OVER = FAILURES[:5]
_DRAINED = "spine2"
_TIMEOUT_S = 120.0
_STAYS_S = 2.5  # of a failure after which the same service leads
_PAUSE_S = 0.02
_LATE_S = 0.35  # since the last acknowledgement: after half a lease, 0.5 s, the service that leads seeks to go on alone


@dataclass(frozen=True, slots=True)
class Takeover:
    """One failure: for how long no host was answered, and the same for the host that waited longest; in seconds."""

    failure: str
    is_other: bool
    """Whether the other service leads afterwards. A machine that stands still for a second has services change too."""
    without_s: float
    worst_host_s: float
    before: int
    after: int
    """The generation that leads."""
    was_alone: bool = False
    """Whether the service went on alone just as it failed, so that the other one could not take over."""


class Service:
    """One of the two, as a process, with a folder of its own."""

    def __init__(self, folder: Path, topology: Path, *, standby: bool) -> None:
        self.folder = folder
        self.token = folder / "token"
        self.operator = Operator(self.token)
        self.from_hosts, self.from_other = Proxy(), Proxy()
        self._topology = topology
        self._standby = standby
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, other: At) -> None:
        """Starts the process, and leads the proxies to it."""
        argv = ["-m", "testbed", "path-service", "run", "--json", "--listen", "127.0.0.1:0"]
        argv += ["--topology", str(self._topology), "--token-file", str(self.token), "--peer", f"{other[0]}:{other[1]}"]
        argv += ["--standby"] if self._standby else []
        with open(self.folder / "log", "a") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *argv, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        async with asyncio.timeout(_TIMEOUT_S):
            line = await self._process.stdout.readline()
        if not line:
            raise TestbedError(f"a path service did not start: {(self.folder / 'log').read_text()[-500:]}")
        address, _, port = json.loads(line)["listen"].rpartition(":")
        self.from_hosts.to = self.from_other.to = (address, int(port))

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def ask(self, method: str, *arguments: Any) -> Any:
        return await asyncio.to_thread(getattr(self.operator, method), *arguments)

    async def availability(self) -> dict[str, Any]:
        """What its status says of it; {} where it does not answer."""
        try:
            return dict((await self.ask("status"))["availability"])
        except AdminError:
            return {}

    def went_on_alone_after(self, generation: int) -> bool:
        """Whether it has logged that it led alone in a later generation."""
        said = re.findall(r"leading alone in generation (\d+)", (self.folder / "log").read_text())
        return any(int(each) > generation for each in said)


class Scene:
    """Two services and their hosts."""

    def __init__(self, folder: Path, hosts: int, tell: Callable[[str], None]) -> None:
        self.topology = leaf_spine(2, 3, -(-hosts // 2), 10**9)
        (folder / "fabric.yaml").write_text(dump_topology(self.topology))
        self.services = []
        for name in ("one", "other"):
            (folder / name).mkdir()
            self.services.append(Service(folder / name, folder / "fabric.yaml", standby=name == "other"))
        make_token(self.services[0].token)
        token = read_token(self.services[0].token)
        self.services[1].token.write_text(token)
        self.services[1].token.chmod(0o600)
        self._tell = tell
        self._token = token
        self.hosts: list[BenchHost] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for service in self.services:
            await service.from_hosts.start()
            await service.from_other.start()
        await asyncio.gather(*(self._start(service) for service in self.services))
        addresses = [str(host.nics[0].address) for host in self.topology.hosts]
        services = [service.from_hosts.at for service in self.services]
        for number, device in enumerate(addresses):
            peer = addresses[(number + len(addresses) // 2) % len(addresses)]
            self.hosts.append(BenchHost(number, device, peer, self._token, services))
        self._tasks = [asyncio.create_task(host.run()) for host in self.hosts]
        leads, _ = await self.settled()
        await leads.ask("drain", _DRAINED)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for service in self.services:
            service.signal(signal.SIGCONT)
            await service.kill()
            await service.from_hosts.close()
            await service.from_other.close()

    def logs(self) -> str:
        """What both services have logged last."""
        lines = [(service.folder / "log").read_text().splitlines()[-30:] for service in self.services]
        return "\n".join(line for each in lines for line in ("", *each))

    async def _start(self, service: Service) -> None:
        other = self.services[1 - self.services.index(service)]
        await service.start(other.from_other.at)

    async def settled(self) -> tuple[Service, int]:
        """Waits until one service leads, the other follows and knows of all hosts, and these are answered.

        Returns the one that leads, and its generation, both read after the hosts were answered: it may have gone on
        alone meanwhile.
        """
        end_s = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < end_s:
            states = [await service.availability() for service in self.services]
            found = _leads(states)
            if found is not None:
                await self._hosts_are_answered(end_s)
                states = [await service.availability() for service in self.services]
                # The other one takes over by votes of the hosts that it knows of.
                if _leads(states) == found and states[1 - found[0]].get("witnesses") == len(self.hosts):
                    return self.services[found[0]], found[1]
            await asyncio.sleep(_PAUSE_S)
        raise TestbedError(f"two path services did not settle: {states}")

    async def _hosts_are_answered(self, end_s: float) -> None:
        since_s = time.monotonic()
        while any(host.ports is None or host.answered_s[-1:] < [since_s] for host in self.hosts):
            if time.monotonic() > end_s:
                raise TestbedError("hosts are not answered")
            await asyncio.sleep(_PAUSE_S)

    async def fail(self, failure: str) -> Takeover:
        """Does it, waits until hosts are answered again, mends it, and checks what hosts have."""
        leads, before = await self.settled()
        other = self.services[1 - self.services.index(leads)]
        begin_s = time.monotonic()
        await self._do(failure, leads, other)
        was_alone = False
        if failure in _TAKEN_OVER:
            was_alone = not await self._is_taken_over(leads, before)
        else:
            await asyncio.sleep(_STAYS_S)
        if failure == "stop":  # while the other one leads
            leads.signal(signal.SIGCONT)
        await self._mend(failure, leads, other)
        now_leads, after = await self.settled()
        await self.check(now_leads)
        return Takeover(failure, now_leads is other, *self._without(begin_s), before, after, was_alone)

    async def _do(self, failure: str, leads: Service, other: Service) -> None:
        match failure:
            case "kill":
                await leads.kill()
            case "stop":
                leads.signal(signal.SIGSTOP)
            case "cut off" | "no answers from it" | "nothing to it":
                for proxy in (leads.from_hosts, leads.from_other):
                    proxy.forth = failure == "no answers from it"
                    proxy.back = failure == "nothing to it"
                other.from_other.forth = failure == "nothing to it"  # what it sends by a link that it has made
                other.from_other.back = failure == "no answers from it"
            case "cut between":
                for proxy in (leads.from_other, other.from_other):
                    proxy.forth = proxy.back = False
            case "kill the other":
                await other.kill()

    async def _mend(self, failure: str, leads: Service, other: Service) -> None:
        if failure == "kill":
            await self._start(leads)
        elif failure == "kill the other":
            await self._start(other)
        for service in (leads, other):
            for proxy in (service.from_hosts, service.from_other):
                proxy.forth = proxy.back = True

    async def _is_taken_over(self, failed: Service, generation: int) -> bool:
        """Waits until all hosts are answered by a service of a higher generation. False if the failed one was alone."""
        end_s = time.monotonic() + _TIMEOUT_S
        while any(host.ports is None or host.generation <= generation for host in self.hosts):
            if failed.went_on_alone_after(generation):
                return False
            if time.monotonic() > end_s:
                raise TestbedError("no service has taken over")
            await asyncio.sleep(_PAUSE_S)
        return True

    async def check(self, leads: Service) -> None:
        """Raises TestbedError unless all hosts have ports of the paths that the service has planned."""
        routes = forwarding(self.topology)
        end_s = time.monotonic() + _TIMEOUT_S
        while wrong := self._wrong(await leads.ask("flows"), routes):
            if time.monotonic() > end_s:
                raise TestbedError(f"hosts have wrong ports: {wrong[0]}")
            await asyncio.sleep(_PAUSE_S)

    def _wrong(self, said: dict[str, Any], routes: Any) -> list[str]:
        planned = {(flow["device"], flow["peer"]): flow["path"] for flow in said["flows"]}
        wrong = []
        for host in self.hosts:
            path = planned.get((host.device, host.peer))
            if path is None or not host.ports or any(end.startswith(_DRAINED) for end in path):
                wrong.append(f"{host.device}: {host.ports}, planned {path}")
                continue
            for port in host.ports:
                flow = Flow(ip_address(host.device), ip_address(host.peer), port)
                takes = [str(end) for end in path_of(self.topology, flow, OvsHash(), routes=routes)]
                if takes != path:
                    wrong.append(f"{host.device}, port {port}: {takes}, planned {path}")
        return wrong

    def _without(self, begin_s: float) -> tuple[float, float]:
        """The longest time without an answer since then, for all hosts together and for the one that waited longest."""
        end_s = time.monotonic()
        worst = [_gap([begin_s, *(at for at in host.answered_s if at >= begin_s), end_s]) for host in self.hosts]
        together = sorted(at for host in self.hosts for at in host.answered_s if at >= begin_s)
        for host in self.hosts:
            host.answered_s = host.answered_s[-1:]
        return _gap([begin_s, *together, end_s]), max(worst)


def _leads(states: Sequence[dict[str, Any]]) -> tuple[int, int] | None:
    """Which of the two leads and does not go on alone soon, and its generation; None if there is none."""
    for index, state in enumerate(states):
        is_followed = state.get("role") == "leading" and state["followed"] and state["lag_s"] < _LATE_S
        if is_followed and states[1 - index].get("role") == "following":
            return index, state["generation"]
    return None


def _gap(times: Sequence[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(times))


async def measure(folder: Path, failures: Sequence[str], hosts: int, tell: Callable[[str], None]) -> list[Takeover]:
    """Has the services fail in this order. Raises TestbedError where one is not as it should be afterwards."""
    scene = Scene(folder, hosts, tell)
    try:
        await scene.start()
        found: list[Takeover] = []
        for number, failure in enumerate(failures, 1):
            found.append(await scene.fail(failure))
            tell(f"{number} of {len(failures)}, {failure}: {found[-1].without_s:.2f} s without an answer")
        return found
    except TestbedError as error:
        raise TestbedError(f"{error}\n{scene.logs()}") from error
    finally:
        await scene.close()


def table(found: Sequence[Takeover]) -> list[str]:
    """The rows in Markdown."""
    lines = [
        "| failure | times | taken over | without an answer, median | worst | one host, worst |",
        "|---|---|---|---|---|---|",
    ]
    measured = [each for each in found if not each.was_alone]
    for failure in dict.fromkeys(each.failure for each in measured):
        times = [each for each in measured if each.failure == failure]
        spans = [each.without_s for each in times]
        worst = max(each.worst_host_s for each in times)
        others = sum(each.is_other for each in times)
        lines.append(
            f"| {failure} | {len(times)} | {others} | {median(spans):.2f} s | {max(spans):.2f} s | {worst:.2f} s |"
        )
    if alone := len(found) - len(measured):
        failures = f"{alone} failure{'' if alone == 1 else 's'} of a leader that had just gone on alone"
        lines += ["", f"Left out: {failures}, which the other one cannot take over from."]
    return lines


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=printable(str(__doc__).partition("\n\n")[0]))
    parser.add_argument("--failures", type=int, default=50)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    order = [FAILURES[number % len(FAILURES)] for number in range(chosen.failures)]
    random.Random(chosen.seed).shuffle(order)
    with tempfile.TemporaryDirectory() as folder:
        tell = lambda text: print(printable(text), file=sys.stderr, flush=True)  # noqa: E731
        found = asyncio.run(measure(Path(folder), order, chosen.hosts, tell))
    for line in (f"{this_machine()}, {os.getloadavg()[0]:.0f} other processes ran", "", *table(found)):
        print(printable(line))


if __name__ == "__main__":
    main()
