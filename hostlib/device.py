# SPDX-License-Identifier: Apache-2.0
"""Devices: what applications open first. Checks every option, then hands over to the native engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, get_args

from hostlib import _engine

Backend = Literal["soft", "verbs"]
Policy = Literal["ecmp", "pinned", "adaptive", "controller"]
PATH_MTUS = (256, 512, 1024, 2048, 4096)
FIRST_SOURCE_PORT = 0xC000
MAX_LANES = 1024
ELEPHANT_BYTES = 2**20
MAX_SECONDS = 1_000_000
MAX_WRITE_BYTES = 2**31  # of one RDMA WRITE


@dataclass(frozen=True, slots=True)
class Faults:
    """What the device does to packets that it receives, as a bad network would: probabilities in [0, 1] per packet.

    ``reorder`` holds a packet back until some later ones have passed, from 1 to ``reorder_packets``; ``corrupt`` flips
    one bit, any of them. The same seed draws the same faults.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    reorder_packets: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder", "corrupt"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is a probability from 0 to 1, not {value}")
        if not 1 <= self.reorder_packets <= 4096:
            raise ValueError(f"reorder_packets must be 1 to 4096, not {self.reorder_packets}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be 0 to {2**64 - 1}, not {self.seed}")


def local_interfaces() -> list[tuple[str, str, int]]:
    """Name, IPv4 address and MTU in bytes of every interface that a device could be opened on."""
    return _engine.interfaces()


def default_busy_poll_s() -> float:
    """Spinning pays where a core is free for it: 50 microseconds, nothing on one or two cores."""
    return 50e-6 if len(os.sched_getaffinity(0)) > 2 else 0.0


class Device:
    """A NIC, named by its IPv4 address, with m lanes and one progress thread. A context manager.

    ``lanes``
        m, the number of path slots. Each has its UDP source port and, towards each peer, its QP.
    ``policy``
        Who chooses the ports: ``ecmp`` draws them at random (m = 1 is plain ECMP, m > 1 ParaLet), ``pinned`` takes them
        from ``ports``, ``adaptive`` draws them and moves a lane that times out or whose round trip stays bad.
        ``controller`` draws them, announces elephants to a path service (docs/path-service.md) and moves their lanes to
        the ports that it assigns; while the service is away, late or makes no sense this is ``ecmp``.
    ``ports``
        For ``pinned``: the source ports (49152..65535) of lane 0, 1, .. by peer address; fewer ports than lanes repeat.
        Peers that are not named get random ports.
    ``seed``
        Makes random ports reproducible; None draws them afresh.
    ``path_mtu``
        Payload bytes per packet: 256, 512, 1024, 2048 or 4096. None takes the largest the link's MTU allows.
    ``line_rate_bps``
        Paces all lanes together, each at its share. None does not pace.
    ``base_rtt_s``, ``flowlet_bytes``
        Flowlets have S = 4 BDP / m bytes (section 5.2), with the round trip given or else measured; ``flowlet_bytes``
        sets S outright. Without a line rate S is 1 MiB. Congestion control takes what exceeds ``base_rtt_s``, or a
        32nd of ``target_queue_s``, for queue: give it where paths are longer.
    ``mice_bytes``
        Messages up to this size travel as one flowlet on one lane. None means one packet.
    ``target_queue_s``
        Queueing delay that congestion control aims at. None takes 2 ms, or 12 packets at the line rate if that is more.
    ``min_timeout_s``, ``retry_time_s``
        The least time before a silent lane sends again (None: 67 ms, or 4 target queues if that is more), and how long
        a peer may stay silent before its requests fail. Without a line rate a lane asks before that, by one packet
        sent again after 2 ms or its own measured round trip, if that is more.
    ``busy_poll_s``
        How long the progress thread and ``Request.wait`` spin before they sleep.
    ``idle_peer_s``
        QPs of a peer are dropped when it has had no connection for so long.
    ``faults``
        Injected on reception, for tests.
    ``controller``, ``token_file``, ``token``, ``job``
        For ``controller``: where the path service listens (``"10.0.0.9:4792"``), the shared token or the file that
        holds it (which only its owner may read), and the job's name that is told with each elephant.
    ``elephant_bytes``
        For ``controller``: messages to one peer that follow each other without a pause are an elephant from so many
        bytes on. What is shorter is over before an answer could help.
    ``assign_wait_s``
        For ``controller``: a new elephant waits for its ports so long at most; 0 starts at once on random ones.
    ``revert_rtt``, ``revert_loss``
        For ``controller``: a lane leaves its assigned port when its round trip stays above so many times the best of
        the peer's lanes (and four target queues), or when such a share of its packets is sent again; also when it times
        out. It takes an assigned port again with the next assignment.
    ``reconnect_s``
        For ``controller``: the shortest and longest delay between attempts to reach a service that is away.
    ``backend``
        ``soft``: RoCEv2 over UDP sockets, no privilege. ``verbs``: an RDMA NIC or the kernel's SoftRoCE, through
        libibverbs; congestion control and pacing are the NIC's then. Devices of either kind talk to each other.
    ``gid_index``, ``traffic_class``, ``service_level``
        For ``verbs``: another RoCEv2 GID than that of the address (of the same port), the IPv4 TOS byte (DSCP and ECN,
        0 to 255) and the priority (0 to 7) of all packets.

    Raises DeviceError when the address is not this machine's or a source port is taken, ValueError for wrong options.
    """

    def __init__(
        self,
        address: str,
        *,
        lanes: int = 8,
        policy: Policy = "ecmp",
        ports: Mapping[str, Sequence[int]] | None = None,
        seed: int | None = None,
        path_mtu: int | None = None,
        line_rate_bps: float | None = None,
        base_rtt_s: float | None = None,
        flowlet_bytes: int | None = None,
        mice_bytes: int | None = None,
        target_queue_s: float | None = None,
        min_timeout_s: float | None = None,
        retry_time_s: float = 10.0,
        busy_poll_s: float | None = None,
        idle_peer_s: float = 2.0,
        faults: Faults | None = None,
        controller: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        token: str | None = None,
        job: str = "",
        elephant_bytes: int = ELEPHANT_BYTES,
        assign_wait_s: float = 0.0,
        revert_rtt: float = 4.0,
        revert_loss: float = 0.25,
        reconnect_s: tuple[float, float] = (0.05, 1.0),
        backend: Backend = "soft",
        gid_index: int | None = None,
        traffic_class: int = 0,
        service_level: int = 0,
    ) -> None:
        if backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, not {backend!r}")
        if backend == "soft" and (gid_index is not None or traffic_class or service_level):
            raise ValueError("gid_index, traffic_class and service_level are for backend 'verbs'")
        if backend == "verbs" and faults is not None:
            raise ValueError("faults are for backend 'soft': a NIC's packets are its own")
        if policy not in get_args(Policy):
            raise ValueError(f"policy must be one of {', '.join(get_args(Policy))}, not {policy!r}")
        if not 1 <= lanes <= MAX_LANES:
            raise ValueError(f"lanes must be 1 to {MAX_LANES}, not {lanes}")
        if path_mtu is not None and path_mtu not in PATH_MTUS:
            raise ValueError(f"path_mtu must be one of {', '.join(map(str, PATH_MTUS))}, not {path_mtu}")
        if policy == "pinned" and not ports:
            raise ValueError("policy 'pinned' needs ports: a list of UDP source ports for each peer address")
        if policy != "pinned" and ports:
            raise ValueError(f"ports are for policy 'pinned', not for {policy!r}")
        if policy == "controller" and (controller is None or (token is None) == (token_file is None)):
            raise ValueError("policy 'controller' needs controller, HOST:PORT, and either token_file or token")
        if policy != "controller" and any(x is not None for x in (controller, token, token_file)):
            raise ValueError(f"controller, token and token_file are for policy 'controller', not for {policy!r}")
        for peer, numbers in (ports or {}).items():
            if not numbers:
                raise ValueError(f"the list of source ports for peer {peer} is empty")
            for port in numbers:
                if not FIRST_SOURCE_PORT <= port <= 0xFFFF:
                    raise ValueError(f"source port {port} for peer {peer} is outside 49152..65535")
        for name, value, least, most in (
            ("seed", seed, 0, 2**64 - 1),
            ("line_rate_bps", line_rate_bps, 1, 1e15),
            ("base_rtt_s", base_rtt_s, 0, MAX_SECONDS),
            ("flowlet_bytes", flowlet_bytes, 1, MAX_WRITE_BYTES),
            ("mice_bytes", mice_bytes, 0, MAX_WRITE_BYTES),
            ("target_queue_s", target_queue_s, 0, MAX_SECONDS),
            ("min_timeout_s", min_timeout_s, 0, MAX_SECONDS),
            ("retry_time_s", retry_time_s, 0, MAX_SECONDS),
            ("busy_poll_s", busy_poll_s, 0, MAX_SECONDS),
            ("idle_peer_s", idle_peer_s, 0, MAX_SECONDS),
            ("elephant_bytes", elephant_bytes, 1, 2**63),
            ("assign_wait_s", assign_wait_s, 0, MAX_SECONDS),
            ("revert_rtt", revert_rtt, 1, 1e9),
            ("revert_loss", revert_loss, 1e-9, 1e9),
            ("gid_index", gid_index, 0, 255),
            ("traffic_class", traffic_class, 0, 255),
            ("service_level", service_level, 0, 7),
            ("reconnect_s", reconnect_s[0], 0.001, MAX_SECONDS),
            ("reconnect_s", reconnect_s[1], reconnect_s[0], MAX_SECONDS),
        ):
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} must be {least} to {most}, not {value}")
        faults = faults or Faults()
        self.address = address
        self.lanes = lanes
        self.policy: Policy = policy
        self.backend: Backend = backend
        self._engine = _engine.Device(
            address=address,
            lanes=lanes,
            policy=policy,
            ports={peer: list(numbers) for peer, numbers in (ports or {}).items()},
            seed=seed,
            path_mtu=path_mtu,
            line_rate_bps=line_rate_bps or 0.0,
            base_rtt_s=base_rtt_s,
            flowlet_bytes=flowlet_bytes,
            mice_bytes=mice_bytes,
            target_queue_s=target_queue_s,
            min_timeout_s=min_timeout_s,
            retry_time_s=retry_time_s,
            busy_poll_s=default_busy_poll_s() if busy_poll_s is None else busy_poll_s,
            idle_peer_s=idle_peer_s,
            faults=(faults.drop, faults.duplicate, faults.reorder, faults.corrupt),
            fault_reorder_packets=faults.reorder_packets,
            fault_seed=faults.seed,
            controller=None
            if controller is None
            else {
                "service": controller,
                "token": token,
                "token_file": os.fspath(token_file) if token_file is not None else "",
                "job": job,
                "elephant_bytes": elephant_bytes,
                "assign_wait_s": assign_wait_s,
                "revert_rtt": revert_rtt,
                "revert_loss": revert_loss,
                "reconnect_s": reconnect_s,
            },
            backend=backend,
            gid_index=gid_index,
            traffic_class=traffic_class,
            service_level=service_level,
        )

    @property
    def path_mtu(self) -> int:
        """Payload bytes per packet that this side allows."""
        return self._engine.path_mtu

    @property
    def udp_port(self) -> int:
        """Where packets arrive: 4791, or another port if a process on this address had 4791 already."""
        return self._engine.udp_port

    def listen(self) -> _engine.Listener:
        """Opens a listener, whose handle lets peers connect."""
        return self._engine.listen()

    def connect(self, handle: bytes, timeout_s: float = 10.0) -> _engine.Connection:
        """Connects to the listener that made the handle.

        Raises TransportError when it refuses or cannot be reached, TimeoutError, and ValueError for what is no handle.
        """
        return self._engine.connect(handle, timeout_s)

    def register(self, buffer: Any) -> _engine.MemoryRegion:
        """Registers a writable C-contiguous buffer (numpy array, bytearray, mmap) for many transfers."""
        return self._engine.register(buffer)

    def set_port(self, peer: str, lane: int, port: int) -> bool:
        """Moves a lane to another source port as soon as no flowlet is under way on it. False: no such peer or lane."""
        if not FIRST_SOURCE_PORT <= port <= 0xFFFF:
            raise ValueError(f"source port {port} is outside 49152..65535")
        return self._engine.set_port(peer, lane, port)

    def counters(self) -> dict[str, Any]:
        """What has happened so far.

        ``lanes``: a row per (peer, lane) with the port and how it was set (``port_method``), bytes, packets, flowlets,
        retransmits, timeouts and round trips in seconds; ``messages``: sends and receives that finished, their bytes,
        and how many ``failed``; ``discards``: packets thrown away, by reason; ``qps``,
        ``peers`` and ``connections`` that exist now. With policy ``controller`` also ``controller``: whether the
        service is ``connected``, since when on time.monotonic()'s clock (``since_s``) and how often it was;
        ``elephants`` open now; those ``announced`` so far, ``assigned`` ports, begun on random ones (``ecmp_starts``)
        and ``released``; ``announces`` said, ``assigns`` taken and how many of these were ``pushes``, those that were
        ``stale``, lines of ``nonsense``, events ``dropped``, lanes ``reverted`` and moves to ports that are
        ``unbound``, another program's.
        """
        return self._engine.counters()

    def close(self) -> None:
        """Closes all connections and stops. Requests still pending fail. Closing twice is allowed."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
