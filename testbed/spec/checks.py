# SPDX-License-Identifier: Apache-2.0
"""Every check that can be made before anything is started, where parts of a spec have to fit each other."""

from netmodel import (
    PortRef,
    Topology,
    forwarding,
    lit,
    load_topology,
)
from sdn.openflow.source_rules import source_rules
from testbed.errors import Misfit
from testbed.spec.circuits import check_optical, laid_out
from testbed.spec.experiment import Experiment
from testbed.spec.placing import hosts_of, isolation_of, job_sizes, jobs_of, nic_index, port_named
from testbed.spec.written import LACKING, LARGEST_HEADERS_BYTES, MODELS, Spec, TopologyFile
from testbed.workloads import NcclAllreduce


def check(spec: Spec) -> Experiment:
    """What `spec` stands for. Raises Misfit, or SpecError for a topology file."""
    topology = load_topology(spec.topology.file) if isinstance(spec.topology, TopologyFile) else spec.topology.topology
    seeds = tuple(range(1, spec.seeds + 1)) if isinstance(spec.seeds, int) else tuple(spec.seeds)
    _check_cabled(topology)
    check_optical(spec, topology)
    isolation = None
    if spec.placement.rule == "vclos":
        isolation = isolation_of(spec, topology)
        hosts = tuple(host for job in isolation.clos.jobs for host in job.hosts)
    else:
        hosts = hosts_of(spec.placement, topology, seeds[0])
    cabled = topology if isolation is not None and isolation.circuits else None
    experiment = Experiment(
        spec=spec,
        topology=topology if isolation is None else lit(topology, isolation.circuits),
        hosts=hosts,
        seeds=seeds,
        pcap=tuple(port_named(text, topology, "pcap", index) for index, text in enumerate(spec.pcap)),
        nic=nic_index(spec.nic, topology, hosts, "nic"),
        jobs=jobs_of(
            job_sizes(spec), len(hosts), ("jobs",) if spec.workload.job_sizes is None else ("workload", "models")
        ),
        local_nic=None if spec.local_nic is None else nic_index(spec.local_nic, topology, hosts, "local_nic"),
        cabled=cabled,
        isolation=isolation,
    )
    for number, job in enumerate(experiment.jobs):
        try:
            spec.workload.of_job(number).check_ranks(job.size)
        except Misfit as misfit:
            raise Misfit(str(misfit), "workload", *misfit.where) from misfit
    if spec.local_nic is not None and isinstance(spec.workload, NcclAllreduce):
        raise Misfit(f"workload {spec.workload.kind} uses one NIC only; leave it out", "local_nic")
    if any(switch.role != "ocs" for switch in topology.switches):
        _check_reach(experiment)
    else:
        experiment = laid_out(experiment)
    for index, policy in enumerate(spec.policies):
        if policy.policy in LACKING[spec.fabric]:
            others = [name for name, lacking in LACKING.items() if policy.policy not in lacking and name != "softroce"]
            said = f"fabric {spec.fabric} has no policy {policy.policy}; use {' or '.join(others)}"
            raise Misfit(said, "policies", index, "policy")
        if policy.paced and spec.fabric != "fluid":
            raise Misfit("only fabric fluid models it", "policies", index, "paced")
        try:
            for seed in seeds:
                experiment.at(seed).routes(policy.name)
        except ValueError as error:
            raise Misfit(str(error), "policies", index) from error
    if spec.fabric in MODELS:
        _check_modelled(spec)
    else:
        _check_live(spec)
    for index, event in enumerate(spec.events):
        for key in ("cut", "degrade", "mend"):
            if (text := getattr(event, key)) is not None:
                port_named(text, topology, "events", index, key)
        if event.controller and not any(policy.policy == "controller" for policy in spec.policies):
            raise Misfit("the spec has no policy controller that it would concern", "events", index, "controller")
    if spec.pinning == "rules":
        try:
            source_rules(topology, forwarding(topology))
        except ValueError as error:
            raise Misfit(str(error), "pinning") from error
    if spec.path_mtu is not None and spec.path_mtu + LARGEST_HEADERS_BYTES > topology.mtu_bytes:
        raise Misfit(
            f"{spec.path_mtu} bytes of payload and {LARGEST_HEADERS_BYTES} of headers do not fit the topology's MTU of "
            f"{topology.mtu_bytes}",
            "path_mtu",
        )
    return experiment


def _check_cabled(topology: Topology) -> None:
    """Raises Misfit for a NIC without a cable: placement, capture and counters all look at its switch port."""
    for host in topology.hosts:
        for index in range(len(host.nics)):
            try:
                topology.link_at(PortRef(host.name, index + 1))
            except KeyError as error:
                raise Misfit(f"{error.args[0]}; add one, or leave out the NIC", "topology") from None


def _check_modelled(spec: Spec) -> None:
    """Raises Misfit for what a model has not got."""
    for index, policy in enumerate(spec.policies):
        if spec.fabric == "packet" and policy.policy in ("recycled", "plb") and spec.packet.ecn_bytes is None:
            raise Misfit("it needs switches that mark; give ecn_bytes under packet", "policies", index, "policy")
    for index, event in enumerate(spec.events):
        if event.controller is not None:
            raise Misfit(f"fabric {spec.fabric} has no controller process; use mininet", "events", index, "controller")
    if spec.fabric == "packet" and spec.events:
        raise Misfit("on fabric packet nothing happens to links; use fluid", "events")
    if spec.local_nic is not None:
        raise Misfit(f"fabric {spec.fabric} models one NIC of each host; use mininet", "local_nic")
    if spec.pcap:
        raise Misfit(f"fabric {spec.fabric} has no real packets to capture; use mininet", "pcap")


def _check_live(spec: Spec) -> None:
    """Raises Misfit for what only a model has."""
    for index, event in enumerate(spec.events):
        if event.degrade is not None:
            raise Misfit(f"fabric {spec.fabric} cuts links but does not degrade them; use fluid", "events", index)


def _check_reach(experiment: Experiment) -> None:
    """Raises Misfit when the workload, with the first seed, needs a path that the fabric does not have."""
    topology, groups = experiment.topology, forwarding(experiment.topology).groups
    ends = [topology.host(host).nics[experiment.nic].address for host in experiment.hosts]
    homes = [topology.peer(PortRef(host, experiment.nic + 1)).node for host in experiment.hosts]
    first = dict(zip(reversed(homes), reversed(ends), strict=True))  # an address on each leaf
    if all(address in groups[home] for home in first for address in first.values()):
        return
    if (transfer := experiment.stranded(experiment.seeds[0])) is not None:
        src, dst = transfer.src, transfer.dst
        raise Misfit(
            f"rank {src} on {experiment.hosts[src]} sends to rank {dst} on {experiment.hosts[dst]}, and topology "
            f"{topology.name} has no path from {homes[src]} to {homes[dst]}; take a workload that relays, or "
            "another placement or topology",
            "workload",
        )
