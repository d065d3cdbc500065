# SPDX-License-Identifier: Apache-2.0
"""OCS-vClos: sets up circuits between switches with free ports when the links that a job needs are not free.

Section 7 and appendix A.3 of the paper that `source_routing` names. Circuits of running jobs are never touched.

Where the appendix contradicts the text, this follows the text. A spine may hold several virtual spines of a job; the
printed (9), at most one link from a virtual leaf to a spine, would forbid that together with (10). And a spine with
exactly as many free ports as GPUs suffices; algorithm 2 requires more.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from itertools import combinations

from sdn.isolation.cluster import Allocation, on_servers, rounded
from sdn.isolation.idle_gpus import Gpu
from sdn.isolation.integer_program import IntegerProgram, first_found
from sdn.isolation.local import within_leaf, within_server
from sdn.isolation.ocs_cluster import Circuit, Level, OcsAllocation, OcsCluster, OpticalPort
from sdn.isolation.vclos import least_size, sizes

_Switch = tuple[Level, int]
_Need = Mapping[tuple[_Switch, _Switch, int], int]
"""The number of circuits between two switches through an OCS."""


def place(cluster: OcsCluster, job: str, gpus: int) -> OcsAllocation | None:
    """Algorithm 2: stages 0 and 1 as in vClos, stage 2 with one spine or none, stage 3 with several.

    None when the job must wait. Sizes and errors are those of `vclos.place`.
    """
    per_server = cluster.gpus_per_server
    given = rounded(cluster.gpus, gpus, per_server, job)
    if given <= per_server:
        return _local(within_server(cluster.idle, given, job))
    found: OcsAllocation | None = None

    def fits(size: int) -> bool:
        nonlocal found
        if (found := _across_servers(cluster, job, size)) is not None:
            return True
        if size not in cluster.fitting:
            cluster.fitting[size] = _across_servers(cluster.emptied(), job, size) is not None
        return cluster.fitting[size]

    least_size(range(given, cluster.gpus + 1, per_server), fits, job, gpus)
    return found


def _across_servers(cluster: OcsCluster, job: str, gpus: int) -> OcsAllocation | None:
    """Stages 1 to 3, for whole servers."""
    if (local := within_leaf(cluster.idle, gpus, job)) is not None:
        return _local(local)
    if cluster.idle.whole.sum() * cluster.gpus_per_server < gpus:
        return None
    free = _FreeResources(cluster, gpus)
    return first_found(
        [
            lambda: free.allocation(job, 2, free.two_leaves()),
            lambda: free.allocation(job, 2, free.one_spine()),
            lambda: free.allocation(job, 3, free.several_spines()),
        ]
    )


def _local(found: Allocation | None) -> OcsAllocation | None:
    return None if found is None else OcsAllocation(found.job, found.stage, found.gpus)


_Plan = tuple[dict[int, int], _Need]
"""Servers by leaf, and circuits."""


class _FreeResources:
    """The free resources of a cluster, and the stages that place a job of `gpus` GPUs on them."""

    def __init__(self, cluster: OcsCluster, gpus: int) -> None:
        self._cluster, self._gpus = cluster, gpus
        self._idle_servers = [cluster.idle.servers(leaf) for leaf in range(cluster.leaves)]
        self._per_server = cluster.gpus_per_server
        self._switches = cluster.switches
        self._free = cluster.free_ports()
        self._leaves = [leaf for leaf, servers in enumerate(self._idle_servers) if servers]

    def two_leaves(self) -> _Plan | None:
        """Half of the servers on each of two leaves, joined directly: one circuit per two GPUs, no spine."""
        servers, odd = divmod(self._gpus // self._per_server, 2)
        if odd:
            return None
        ready = [leaf for leaf in self._leaves if len(self._idle_servers[leaf]) >= servers]
        for one, other in sorted(combinations(ready, 2), key=lambda pair: sum(map(self._servers, pair))):
            need, left = Counter[tuple[_Switch, _Switch, int]](), self._gpus // 2
            for ocs in self._switches:
                count = min(left, self._ports("leaf", one, ocs), self._ports("leaf", other, ocs))
                need[("leaf", one), ("leaf", other), ocs] += count
                left -= count
            if not left:
                return {one: servers, other: servers}, +need
        return None

    def one_spine(self) -> _Plan | None:
        """Leaves joined by one spine: the first in ascending order of free ports that can join them."""
        enough = [m for m in range(self._cluster.spines) if self._spine_ports(m) >= self._gpus]
        return first_found(
            partial(self._by_spine, spine) for spine in sorted(enough, key=lambda m: (self._spine_ports(m), m))
        )

    def _by_spine(self, spine: int) -> _Plan | None:
        program = IntegerProgram()
        servers = {leaf: program.column(self._servers(leaf), self._servers(leaf)) for leaf in self._leaves}
        program.row(dict.fromkeys(servers.values(), 1.0), *[self._gpus // self._per_server] * 2)
        links = {
            (leaf, ocs): program.column(self._ports("leaf", leaf, ocs))
            for leaf in self._leaves
            for ocs in self._switches
        }
        for leaf, column in servers.items():
            own = {links[leaf, ocs]: 1.0 for ocs in self._switches}
            program.row({**own, column: -float(self._per_server)}, 0.0, 0.0)
        for ocs in self._switches:
            all_there = {links[leaf, ocs]: 1.0 for leaf in self._leaves}
            program.row(all_there, upper=self._ports("spine", spine, ocs))
        if (found := program.solve()) is None:
            return None
        need = Counter[tuple[_Switch, _Switch, int]]()
        for (leaf, ocs), at in links.items():
            need[("leaf", leaf), ("spine", spine), ocs] = found[at]
        return {leaf: found[at] for leaf, at in servers.items() if found[at]}, +need

    def several_spines(self) -> _Plan | None:
        """Algorithm 4: l virtual leaves and s virtual spines, by the integer program of appendix A.3."""
        cluster = self._cluster
        return first_found(
            partial(self._virtual_clos, count, size)
            for count, size in sizes(self._gpus, cluster.leaves, cluster.spines, self._per_server, stacked=True)
        )

    def _virtual_clos(self, count: int, size: int) -> _Plan | None:
        """(7) to (12) for given l and s. (8) is the number of virtual leaves that a leaf has room for."""
        rooms = {n: self._servers(n) * self._per_server for n in self._leaves}
        virtual = [(n, a) for n, room in rooms.items() for a in range(min(count, room // size))]
        if len(virtual) < count:
            return None
        program, spine_ports = IntegerProgram(), [self._spine_ports(m) for m in range(self._cluster.spines)]
        spines = {m: program.column(ports // count, ports) for m, ports in enumerate(spine_ports)}
        leaves = {(n, a): program.column(1, rooms[n]) for n, a in virtual}
        up = {(n, k): self._ports("leaf", n, k) for n in self._leaves for k in self._switches}
        down = {(m, k): self._ports("spine", m, k) for m in spines for k in self._switches}
        links = {
            (n, a, m, k): program.column(min(up[n, k], down[m, k]))
            for n, a in leaves
            for m in spines
            for k in self._switches
        }
        program.row(dict.fromkeys(leaves.values(), 1.0), count, count)
        program.row(dict.fromkeys(spines.values(), 1.0), size, size)
        rows: defaultdict[tuple[str, int, int, int], dict[int, float]] = defaultdict(dict)
        for (n, a, m, k), column in links.items():
            for row in (("leaf", n, a, 0), ("spine", m, 0, 0), ("pair", n, a, m), ("up", n, k, 0), ("down", m, k, 0)):
                rows[row][column] = 1.0
        for (n, a), column in leaves.items():
            if a:
                program.row({column: 1.0, leaves[n, a - 1]: -1.0}, upper=0.0)
            program.row({**rows["leaf", n, a, 0], column: -float(size)}, 0.0, 0.0)
            for m, spine in spines.items():
                program.row({**rows["pair", n, a, m], spine: -1.0}, upper=0.0)
        for m, spine in spines.items():
            program.row({**rows["spine", m, 0, 0], spine: -float(count)}, 0.0, 0.0)
        for (kind, switch, ocs, _), terms in rows.items():
            if kind in ("up", "down"):
                program.row(terms, upper=(up if kind == "up" else down)[switch, ocs])
        if (found := program.solve()) is None:
            return None
        need = Counter[tuple[_Switch, _Switch, int]]()
        for (n, _, m, k), column in links.items():
            need[("leaf", n), ("spine", m), k] += found[column]
        servers = Counter(n for (n, _), column in leaves.items() if found[column])
        return {n: number * size // self._per_server for n, number in servers.items()}, +need

    def allocation(self, job: str, stage: int, plan: _Plan | None) -> OcsAllocation | None:
        """The GPUs and circuits of a plan. Present circuits are preferred, because they need no switching."""
        if plan is None:
            return None
        servers, need = plan
        gpus: list[Gpu] = []
        for leaf, count in sorted(servers.items()):
            gpus += on_servers(leaf, self._idle_servers[leaf][:count], self._per_server)
        left, chosen = Counter(need), set[Circuit]()
        for circuit in sorted(self._cluster.circuits - self._cluster.busy):
            key = (_switch(circuit.a), _switch(circuit.b), self._cluster.ocs[circuit.a])
            if left[key] > 0:
                left[key] -= 1
                chosen.add(circuit)
        used = {port for circuit in chosen for port in circuit.ports}
        made = set[Circuit]()
        for (one, other, ocs), count in sorted((+left).items()):
            for _ in range(count):
                ends = [next(port for port in self._free[(*end, ocs)] if port not in used) for end in (one, other)]
                used.update(ends)
                made.add(Circuit.of(ends[0], ends[1]))
        return OcsAllocation(job, stage, tuple(gpus), frozenset(chosen | made), frozenset(made))

    def _servers(self, leaf: int) -> int:
        return len(self._idle_servers[leaf])

    def _ports(self, level: Level, switch: int, ocs: int) -> int:
        return len(self._free.get((level, switch, ocs), ()))

    def _spine_ports(self, spine: int) -> int:
        return sum(self._ports("spine", spine, ocs) for ocs in self._switches)


def _switch(port: OpticalPort) -> _Switch:
    return port.level, port.switch
