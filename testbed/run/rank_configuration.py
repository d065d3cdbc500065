# SPDX-License-Identifier: Apache-2.0
"""The configuration of every rank in a run, as commands to its agent. Pure: nothing is started here."""

from collections.abc import Mapping
from dataclasses import replace

from netmodel import Forwarding
from netmodel.segments import segments_of
from testbed.allocation.ports import RankPorts
from testbed.run import agent_messages as messages
from testbed.run.path_service import PathServiceProcess
from testbed.spec import Experiment, Instance, Policy


def prepare_commands(
    instance: Instance, policy: Policy, service: PathServiceProcess | None, routes: Forwarding | None = None
) -> dict[int, messages.Prepare]:
    """By rank: the devices to open, their source ports, and the rank's part of the workload.

    `routes` are those of the fabric's switches, where they are not `netmodel.forwarding`.
    """
    experiment, ports = instance.experiment, instance.ports(policy, routes)
    return {
        rank: messages.Prepare(
            rank=rank - job.first,
            ranks=job.size,
            seed=instance.seed,
            workload=experiment.spec.workload,
            transport="socket" if policy.transport == "socket" else "paralet",
            job=number,
            others=_other_devices(instance, policy, rank, ports[rank], service),
            splits=_splits(instance, rank),
            device=_device(instance, policy, rank, ports[rank], service),
        )
        for number, job in enumerate(experiment.jobs)
        for rank in job.ranks
    }


def _other_devices(
    instance: Instance, policy: Policy, rank: int, ports: RankPorts, service: PathServiceProcess | None
) -> list[messages.OtherDevice]:
    """Devices for traffic on the rank's other networks. They use policy ecmp and do not ask the path service."""
    job = instance.experiment.job_of(rank)
    sending, taking = (
        {
            (peer - job.first, route): instance.nics_between(*pair, route)[end]
            for peer in job.ranks
            if peer != rank
            for pair in [(peer, rank) if end else (rank, peer)]
            for route in range(len(instance.shares(*pair)))
        }
        for end in (0, 1)
    )
    plain = _device(instance, policy, rank, replace(ports, table={}, segments={}), service)
    return [
        messages.OtherDevice(
            device=plain.model_copy(
                update={
                    "address": instance.address(rank, nic),
                    "line_rate_bps": instance.line_rate_bps(rank, nic),
                    "policy": "ecmp",
                    **dict.fromkeys(("path_service", "token_file", "job", "elephant_bytes", "assign_wait_s")),
                }
            ),
            targets=[way for way, own in sending.items() if own == nic],
            sources=[way for way, own in taking.items() if own == nic],
        )
        for nic in sorted({*sending.values(), *taking.values()} - {instance.experiment.nic})
    ]


def _splits(instance: Instance, rank: int) -> list[messages.Split]:
    """How the rank's peers share out what they send to it, and the rank what it sends, over several routes."""
    job = instance.experiment.job_of(rank)
    pairs = [pair for peer in job.ranks if peer != rank for pair in ((rank, peer), (peer, rank))]
    shares = {pair: list(instance.shares(*pair)) for pair in pairs}
    return [
        messages.Split(src=src - job.first, dst=dst - job.first, shares=own)
        for (src, dst), own in shares.items()
        if len(own) > 1
    ]


def _device(
    instance: Instance,
    policy: Policy,
    rank: int,
    ports: RankPorts,
    service: PathServiceProcess | None,
) -> messages.DeviceConfig:
    experiment = instance.experiment
    segments = {
        instance.address(peer): [[str(one) for one in segments_of(experiment.topology, path)]] * policy.m
        for peer, path in ports.segments.items()
    }
    return messages.DeviceConfig(
        address=instance.device_address(rank),
        backend="verbs" if experiment.spec.fabric_kind.rdma else "tcp" if policy.transport == "tcp" else "soft",
        lanes=policy.m,
        lanes_per=policy.lanes_per,
        policy=_port_policy(policy, ports),
        ports={instance.address(peer): list(pinned) for peer, pinned in ports.table.items()} or None,
        segments={peer: lanes for peer, lanes in segments.items() if lanes[0]} or None,
        seed=ports.seed,
        path_mtu=experiment.spec.path_mtu,
        line_rate_bps=instance.device_rate_bps(rank),
        flowlet_bytes=policy.flowlet_bytes,
        mice_bytes=policy.mice_bytes,
        congestion_control=policy.congestion_control,
        window_packets=policy.window_packets,
        path_service=None if service is None else service.address,
        token_file=None if service is None else str(service.token_file),
        job=None if service is None else experiment.job_of(rank).name,
        elephant_bytes=policy.elephant_bytes,
        assign_wait_s=policy.assign_wait_s,
    )


def connect_commands(experiment: Experiment, prepared: Mapping[int, messages.Prepared]) -> dict[int, messages.Connect]:
    """By rank: the listener handles of its destinations, keyed by their rank within the job."""
    handles: dict[int, dict[int, str]] = {rank: {} for rank in prepared}
    for destination, report in prepared.items():
        first = experiment.job_of(destination).first
        for source, handle in report.handles.items():
            handles[first + source][destination - first] = handle
    timeout_s = experiment.timeouts.connect_s
    return {rank: messages.Connect(handles=own, timeout_s=timeout_s) for rank, own in handles.items()}


def _port_policy(policy: Policy, ports: RankPorts) -> messages.PortPolicy:
    """The device's path policy: `pinned` where its ports are planned, else that of the policy."""
    if policy.needs_service:
        return "controller"
    return "pinned" if ports.table else policy.kind.device
