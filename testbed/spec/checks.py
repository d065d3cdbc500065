# SPDX-License-Identifier: Apache-2.0
"""Checks of a spec's sections against each other, before anything is started.

A check runs if the sections that it compares are valid, so that all mistakes are found at once.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from netmodel import Location, PortRef, Topology, TopologySpec, forwarding, raise_all
from netmodel.router_plan import RouterPlan
from sdn.measured.router_names import fabric_with, names_of
from sdn.openflow.source_rules import source_rules
from sdn.planners import PLANNERS
from testbed.arrangements import Arrangement
from testbed.arrangements.fused_nics import FusedNics
from testbed.arrangements.rails import LocalNetworks
from testbed.conflict import Conflict
from testbed.spec.circuits import check_optical, laid_out
from testbed.spec.experiment import Experiment
from testbed.spec.fabrics import FABRICS
from testbed.spec.findings import Findings
from testbed.spec.instance import Instance
from testbed.spec.own_app import check_app, check_app_serves
from testbed.spec.placing import (
    Job,
    job_sizes,
    jobs_of,
    nic_index,
    placed_by_vclos,
    placed_hosts,
    port_named,
    sending_port_named,
)
from testbed.spec.policies import Policy
from testbed.spec.written import LARGEST_ROCE_HEADERS_BYTES, OF_ROUTERS, LinkSettings, Spec


def check(spec: Spec) -> Experiment:
    """The experiment of `spec`, whose topology must be in place. Raises Conflict; `others` are further ones."""
    experiment, findings = examine(spec)
    raise_all(findings.conflicts)
    assert experiment is not None  # there are no conflicts
    return experiment


def examine(spec: Spec, unread: Iterable[Location] = ()) -> tuple[Experiment | None, Findings]:
    """The experiment of `spec`, None if its mistakes prevent one, and all conflicts.

    `unread` has the places of the spec that could not be read and were replaced by stand-in values.
    """
    found = Findings(unread)
    assert isinstance(spec.topology, TopologySpec)  # see `load`
    topology = spec.topology.topology
    experiment = None
    if found.fit("topology"):
        with found.collecting():
            _check_cabled(topology)
    if found.fit("topology", "fabric") and not spec.fabric_kind.modelled:
        with found.collecting():
            spec.fabric_kind.check_addresses(topology)
    if found.fit("topology"):
        check_optical(spec, topology, found)
        check_app(spec, topology, found)
        pcap = _checked_ports(spec, topology, found)
        experiment = _experiment(spec, topology, pcap, found)
    if experiment is not None:
        experiment = _checked_workload(experiment, found)
    _check_policies(spec, experiment, found)
    if experiment is not None and found.fit("policies"):
        check_app_serves(experiment, found)
    _check_fabric(spec, found)
    return experiment, found


def _experiment(spec: Spec, topology: Topology, pcap: tuple[PortRef, ...], found: Findings) -> Experiment | None:
    """The experiment with its hosts, jobs and NICs; None if they do not fit."""
    if not found.fit("placement") or (spec.placement.rule == "vclos" and not found.fit("jobs")):
        return None
    seeds = tuple(range(1, spec.seeds + 1)) if isinstance(spec.seeds, int) else tuple(spec.seeds)
    arrangements: list[Arrangement] = []
    hosts: tuple[str, ...] = ()
    cabled = topology
    with found.collecting():
        if spec.placement.rule == "vclos":
            placed = placed_by_vclos(spec, cabled)
            arrangements.append(placed)
            topology, hosts = placed.topology, tuple(chain.from_iterable(placed.hosts.values()))
        else:
            hosts = placed_hosts(spec, topology, seeds[0])
    if not hosts:
        return None
    nic = nic_index(spec.nic, topology, hosts, "nic", found)
    if spec.fused_nics:
        members = _fused(spec, topology, hosts, found)
        if members is None:
            return None
        nic = members[0]
        arrangements.append(FusedNics(topology, members, tuple(spec.fused_nics)))
    local_nic = None if spec.local_nic is None else nic_index(spec.local_nic, topology, hosts, "local_nic", found)
    jobs: tuple[Job, ...] = ()
    if found.fit("jobs", "workload"):
        with found.collecting():
            where = ("jobs",) if spec.workload.job_sizes is None else ("workload", spec.workload.JOBS_KEY)
            jobs = jobs_of(job_sizes(spec), len(hosts), where)
    if not jobs or nic is None or not found.fit("local_nic"):
        return None
    if spec.local_nic is not None and local_nic is not None:
        arrangements.append(LocalNetworks(topology, nic, local_nic, (spec.nic, spec.local_nic)))
    return Experiment(
        spec=spec,
        topology=topology,
        cabled=cabled,
        first_hosts=hosts,
        seeds=seeds,
        pcap=pcap,
        nic=nic,
        jobs=jobs,
        arrangements=tuple(arrangements),
    )


def _fused(spec: Spec, topology: Topology, hosts: Sequence[str], found: Findings) -> tuple[int, ...] | None:
    """The indices of the NICs that act as one; None, and conflicts, where they cannot."""
    for key in ("nic", "local_nic"):
        if key in spec.model_fields_set:
            found.add(Conflict("fused_nics names the NICs that carry the traffic; leave it out", key))
    if len(spec.fused_nics) < 2 or len(set(spec.fused_nics)) < len(spec.fused_nics):
        found.add(Conflict("give two to four NICs, each once", "fused_nics"))
    if not spec.fabric_kind.soft:
        found.add(Conflict("only fabrics mininet and routed fuse NICs; leave it out", "fused_nics"))
    if spec.placement.rule == "vclos":
        found.add(Conflict("a virtual Clos has the first NIC of each host only; leave it out", "fused_nics"))
    if spec.workload.ONE_NIC:
        found.add(Conflict(f"workload {spec.workload.kind} uses one NIC only; leave it out", "fused_nics"))
    found_nics = [nic_index(name, topology, hosts, "fused_nics", found) for name in spec.fused_nics]
    members = tuple(nic for nic in found_nics if nic is not None)
    for host in hosts:
        if len({topology.link_at(PortRef(host, nic + 1)).rate_bps for nic in members}) > 1:
            found.add(Conflict(f"the links of {host} have different rates; fuse NICs of one rate", "fused_nics"))
            break
    return members if found.fit("fused_nics", "nic", "local_nic") else None


def _checked_workload(experiment: Experiment, found: Findings) -> Experiment | None:
    """The experiment, with the circuits of its jobs if any; None if the workload does not fit the fabric."""
    spec = experiment.spec
    for number, job in enumerate(experiment.jobs):
        with found.collecting("workload"):
            spec.workload.of_job(number).check_ranks(job.size)
            if not spec.fabric_kind.modelled:
                spec.workload.check_real()
    if spec.local_nic is not None and spec.workload.ONE_NIC:
        found.add(Conflict(f"workload {spec.workload.kind} uses one NIC only; leave it out", "local_nic"))
    if not found.fit("workload", "topology", "optical", "fabric", "placement", "nic", "local_nic"):
        return None
    with found.collecting():
        _check_killed(experiment)
    with found.collecting():
        if all(switch.role == "ocs" for switch in experiment.topology.switches):
            return laid_out(experiment)
        _check_reach(experiment)
        return experiment
    return None


def _check_killed(experiment: Experiment) -> None:
    """Raises Conflict when a switch that an event kills has no substitute for some transfer of the first seed."""
    spec, topology, dead = experiment.spec, experiment.topology, list[str]()
    first = Instance(experiment, experiment.seeds[0])
    for index, event in enumerate(spec.events):
        if event.kill is None:
            continue
        where = ("events", index, "kill")
        if event.kill not in {switch.name for switch in topology.switches}:
            raise Conflict(f"topology {topology.name} has no switch {event.kill}", *where)
        if spec.fabric_kind.routers:
            continue  # its neighbours go around it, and it may return
        if (
            not any(arrangement.HAS_DETOURS for arrangement in experiment.arrangements)
            or not spec.fabric_kind.kills_switches
        ):
            said = "only hosts with a local_nic, on mininet and fluid, have a way around a switch; cut single links"
            raise Conflict(said, *where)
        dead.append(event.kill)
        try:
            ways = first.detours(dead).ways
        except ValueError as error:
            raise Conflict(str(error), *where) from None
        for transfer in first.stranded(frozenset(experiment.killed_links(dead))):
            src, dst = first.hosts[transfer.src], first.hosts[transfer.dst]
            if (src, dst) not in ways:
                raise Conflict(f"{src} has no way to {dst} while {event.kill} is dead; kill switches of rails", *where)


def _check_cabled(topology: Topology) -> None:
    """Raises Conflict for NICs without a cable: placement, captures and counters all need the switch port."""
    found = []
    for host in topology.hosts:
        for index in range(len(host.nics)):
            try:
                topology.link_at(PortRef(host.name, index + 1))
            except KeyError as error:
                found.append(Conflict(f"{error.args[0]}; add one, or leave out the NIC", "topology"))
    raise_all(found[:1])  # all have the same place in the spec


def _checked_ports(spec: Spec, topology: Topology, found: Findings) -> tuple[PortRef, ...]:
    """The ports to capture at. Checks what depends only on the topology: switch ports, MTU and source-port rules."""
    pcap: list[PortRef] = []
    for index, text in enumerate(spec.pcap):
        with found.collecting():
            pcap.append(port_named(text, topology, "pcap", index))
    for text in spec.links:
        with found.collecting():
            sending_port_named(text, topology, "links", text)
    for index, event in enumerate(spec.events):
        for key in ("cut", "degrade", "mend", "swap"):
            if (text := getattr(event, key)) is not None:
                with found.collecting():
                    port_named(text, topology, "events", index, key)
        for text in event.links or {}:
            with found.collecting():
                sending_port_named(text, topology, "events", index, "links", text)
    if spec.pinning == "rules":
        try:
            source_rules(topology, forwarding(topology))
        except ValueError as error:
            found.add(Conflict(str(error), "pinning"))
    headers = topology.ip_header_bytes + LARGEST_ROCE_HEADERS_BYTES
    if spec.path_mtu is not None and spec.path_mtu + headers > topology.mtu_bytes:
        found.add(
            Conflict(
                f"{spec.path_mtu} bytes of payload and {headers} of headers do not fit the topology's "
                f"MTU of {topology.mtu_bytes}",
                "path_mtu",
            )
        )
    return tuple(pcap)


def _check_policies(spec: Spec, experiment: Experiment | None, found: Findings) -> None:
    """Checks that the fabric has the policies, and that the topology has the routes they need."""
    if not found.fit("fabric"):
        return
    fabric = spec.fabric_kind
    for index, policy in enumerate(spec.policies):
        if not fabric.has(policy.kind):
            others = [name for name, kind in FABRICS.items() if kind.suggested and kind.has(policy.kind)]
            said = f"fabric {spec.fabric} has no policy {policy.policy}; use {' or '.join(others)}"
            found.add(Conflict(said, "policies", index, "policy"))
            continue
        if policy.transport == "socket" and not (spec.workload.SOCKETS and fabric.soft):
            said = "socket is for workloads nccl, torch and command on fabrics mininet and routed; leave it out"
            found.add(Conflict(said, "policies", index, "transport"))
        if policy.transport == "tcp" and not fabric.soft:
            found.add(Conflict("tcp is for fabrics mininet and routed; leave it out", "policies", index, "transport"))
        if policy.transport == "tcp" and _corrupts(spec):
            said = "links damage packets of RoCEv2 only; leave out corruption, or the transport tcp"
            found.add(Conflict(said, "policies", index, "transport"))
        if policy.congestion_control is not None and (not fabric.soft or policy.transport != "paralet"):
            said = "it is for transport paralet on fabrics mininet and routed; leave it out"
            found.add(Conflict(said, "policies", index, "congestion_control"))
        if policy.paced and not fabric.paces:
            found.add(Conflict("only fabric fluid models it", "policies", index, "paced"))
        if policy.lanes_per == "host" and not fabric.shares_lanes:
            said = f"fabric {spec.fabric} has no lanes of a host; leave it out"
            found.add(Conflict(said, "policies", index, "lanes_per"))
        if fabric.switch_settings and policy.kind.heeds_marks and spec.packet.ecn_bytes is None:
            said = "it needs switches that mark; give ecn_bytes under packet"
            found.add(Conflict(said, "policies", index, "policy"))
        if experiment is not None and found.fit_at("policies", index):
            _check_paths(experiment, policy, found, index)
        if experiment is not None and found.fit_at("policies", index) and spec.fused_nics:
            _check_lanes_on_fused(experiment, policy, found, index)


def _check_lanes_on_fused(experiment: Experiment, policy: Policy, found: Findings, index: int) -> None:
    """Checks that a policy leaves the paths of lanes to ports, and that each NIC has a lane."""
    first = Instance(experiment, experiment.seeds[0])
    if policy.needs_service or policy.kind.steers or policy.planned(first.placed, first.planned()):
        said = f"policy {policy.policy} plans for one NIC; take ecmp or adaptive, or leave out fused_nics"
        found.add(Conflict(said, "policies", index, "policy"))
    elif policy.m < len(first.fused):
        found.add(Conflict(f"{len(first.fused)} fused NICs need as many lanes or more", "policies", index, "m"))


def _corrupts(spec: Spec) -> bool:
    settings = [spec.links, *(event.links or {} for event in spec.events)]
    return any(one.corruption for links in settings for one in links.values())


def _check_paths(experiment: Experiment, policy: Policy, found: Findings, index: int) -> None:
    """Checks that the steering and the planner of the policy, if it has them, serve the topology."""
    try:
        for seed in experiment.seeds:
            Instance(experiment, seed).routes(policy)
    except ValueError as error:
        found.add(Conflict(str(error), "policies", index, "policy" if policy.uplinks is None else "uplinks"))
    try:
        _check_planner(experiment, policy)
    except ValueError as error:
        found.add(Conflict(f"{error}; take another policy", "policies", index, "policy"))


def _check_planner(experiment: Experiment, policy: Policy) -> None:
    """Raises ValueError, which says why, where the planner of `policy`, if any, does not serve the topology."""
    if policy.needs_service:
        PLANNERS[policy.planner_name].cabling(experiment.topology)
    for seed in experiment.seeds:
        instance = Instance(experiment, seed)
        policy.kind.check(instance.placed, instance.planned())


def _check_fabric(spec: Spec, found: Findings) -> None:
    """Checks that the fabric has the features that the spec uses."""
    if found.fit("workload", "fabric") and spec.fabric in spec.workload.LACKING:
        found.add(Conflict(f"workload {spec.workload.kind} runs on fabric mininet", "workload", "kind"))
    if found.fit("policies") and not any(policy.needs_service for policy in spec.policies):
        for index, event in enumerate(spec.events):
            if event.path_service:
                said = "no policy of the spec uses the path service; add a policy controller"
                found.add(Conflict(said, "events", index, "path_service"))
    if not found.fit("fabric"):
        return
    if spec.fabric_kind.routers:
        _check_routers(spec, found)
    elif spec.pinning == "measured":
        found.add(Conflict("only routers answer probes: use fabric routed", "pinning"))
    elif spec.pinning == "srv6":
        found.add(Conflict("only fabric routed has segments; leave it out, or take hash", "pinning"))
    for index, event in enumerate(spec.events):
        for name in OF_ROUTERS:
            if getattr(event, name) is not None and not spec.fabric_kind.routers:
                found.add(Conflict("only fabric routed has routers", "events", index, name))
    if spec.fabric_kind.modelled:
        _check_simulated(spec, found)
    _check_faults(spec, found)
    _check_delays(spec, found)


def _check_measured(spec: Spec, topology: Topology, found: Findings) -> None:
    """Checks that answers to probes tell paths."""
    try:
        fabric_with(topology, names_of(topology, unnumbered=spec.routers.unnumbered))
    except ValueError as error:
        found.add(Conflict(f"{error}; for policy controller give pinning: hash", "pinning"))


def _check_routers(spec: Spec, found: Findings) -> None:
    """Checks that the switches can be routers, and that events concern those."""
    assert isinstance(spec.topology, TopologySpec)  # see `load`
    if spec.pinning == "rules":
        found.add(Conflict("routers choose paths by a hash: give hash, measured or srv6, or use mininet", "pinning"))
    if not found.fit("topology"):
        return
    topology = spec.topology.topology
    if spec.pinning == "srv6":
        _check_segments(spec, topology, found)
    try:
        plan = RouterPlan(topology)
    except ValueError as error:
        found.add(Conflict(f"{error}; or use mininet", "topology"))
        return
    if found.fit("policies") and spec.measures:
        _check_measured(spec, topology, found)
    if found.fit("routers"):
        try:
            spec.routers.ecmp_hash(topology)
        except ValueError as error:
            found.add(Conflict(str(error), "routers", "hash_offset"))
    for index, event in enumerate(spec.events):
        for name in ("revive", "drain", "undrain"):
            if (router := getattr(event, name)) is not None and router not in plan.sessions:
                found.add(Conflict(f"topology {topology.name} has no router {router}", "events", index, name))
        if event.reset is not None and event.reset not in map(str, plan.link_addresses):
            found.add(Conflict("no port of a link between two routers", "events", index, "reset"))


def _check_segments(spec: Spec, topology: Topology, found: Findings) -> None:
    """Checks that packets can have a routing header."""
    if not topology.ipv6:
        found.add(Conflict("segments are IPv6 addresses; give the topology ipv6: true, or leave it out", "pinning"))
    if found.fit("routers") and spec.routers.unnumbered:
        said = "segments lead to the addresses of links; leave it out, or pinning srv6"
        found.add(Conflict(said, "routers", "unnumbered"))
    if found.fit("policies"):
        for index, policy in enumerate(spec.policies):
            if policy.policy == "pinned" and policy.transport != "paralet":
                said = "only transport paralet has segments; leave it out, or pinning srv6"
                found.add(Conflict(said, "policies", index, "transport"))


def _check_faults(spec: Spec, found: Findings) -> None:
    """Checks that the fabric has the faults of links, also those of events."""
    fabric = spec.fabric_kind
    places: list[tuple[dict[str, LinkSettings], tuple[str | int, ...]]] = [(spec.links, ("links",))]
    places += [(event.links or {}, ("events", index, "links")) for index, event in enumerate(spec.events)]
    for links, where in places:
        if links and not fabric.faults:
            found.add(Conflict(f"fabric {fabric.name} has no links with faults; use mininet or packet", *where))
            continue
        for port, settings in links.items():
            if settings.mark_above is not None and fabric.modelled and _is_host(spec, port):
                said = f"hosts of fabric {fabric.name} have no queue that marks; leave it out, or use mininet"
                found.add(Conflict(said, *where, port, "mark_above"))
            for name in ("corruption", "reorder"):
                if getattr(settings, name) and name not in fabric.faults:
                    found.add(Conflict(f"fabric {fabric.name} has no {name} by links; use mininet", *where, port, name))
            if settings.delay and fabric.switch_settings and spec.packet.pfc:
                said = "with pfc links have the delays of the topology and packet.link_delay_s; leave it out"
                found.add(Conflict(said, *where, port, "delay"))


def _is_host(spec: Spec, port: str) -> bool:
    """Whether a port of `links` is a host's. No, where it names no port, which `_checked_ports` reports."""
    assert isinstance(spec.topology, TopologySpec)  # see `load`
    try:
        return spec.topology.topology.has_host(PortRef.parse(port).node)
    except ValueError:
        return False


def _check_delays(spec: Spec, found: Findings) -> None:
    """Checks that the fabric can delay packets, where links of the topology have delays."""
    assert isinstance(spec.topology, TopologySpec)  # see `load`
    fabric = spec.fabric_kind
    if fabric.modelled or "delay" in fabric.faults or not found.fit("topology"):
        return
    if any(link.delay_s for link in spec.topology.topology.links):
        said = f"fabric {fabric.name} has no links with delays; leave them out, or use mininet"
        found.add(Conflict(said, "topology"))


def _check_simulated(spec: Spec, found: Findings) -> None:
    """Checks for features that simulated fabrics lack."""
    for index, event in enumerate(spec.events):
        if event.path_service is not None:
            said = f"fabric {spec.fabric} has no path service; use mininet"
            found.add(Conflict(said, "events", index, "path_service"))
        if not spec.fabric_kind.changes_links and (event.link or event.swap or event.kill):
            said = f"fabric {spec.fabric} does not cut, degrade or mend links, nor kill switches; use fluid or mininet"
            found.add(Conflict(said, "events", index))
    if spec.when_busy != "warn":
        found.add(Conflict("a model does not depend on how busy the machine is; leave it out", "when_busy"))
    if spec.pcap:
        found.add(Conflict(f"fabric {spec.fabric} has no real packets to capture; use mininet", "pcap"))


def _check_reach(experiment: Experiment) -> None:
    """Raises Conflict when the workload, with the first seed, needs a path that the fabric does not have."""
    topology, groups = experiment.topology, forwarding(experiment.topology).groups
    first = Instance(experiment, experiment.seeds[0])
    ends = [topology.host(host).nics[experiment.nic].address for host in first.hosts]
    homes = [topology.peer(PortRef(host, experiment.nic + 1)).node for host in first.hosts]
    of_leaf = dict(zip(reversed(homes), reversed(ends), strict=True))  # one address per leaf
    if all(address in groups[home] for home in of_leaf for address in of_leaf.values()):
        return
    if (transfer := next(first.stranded(), None)) is not None:
        src, dst = transfer.src, transfer.dst
        raise Conflict(
            f"rank {src} on {first.hosts[src]} sends to rank {dst} on {first.hosts[dst]}, and topology "
            f"{topology.name} has no path from {homes[src]} to {homes[dst]}; take a workload that relays, or "
            "another placement or topology",
            "workload",
        )
