# SPDX-License-Identifier: Apache-2.0
"""Devices: what applications open first. Checks every option, then hands over to the native engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, get_args

from hostlib import _engine

Policy = Literal["ecmp", "pinned", "adaptive"]
PATH_MTUS = (256, 512, 1024, 2048, 4096)
FIRST_SOURCE_PORT = 0xC000
MAX_LANES = 1024
MAX_SECONDS = 1_000_000
MAX_WRITE_BYTES = 2**31  # of one RDMA WRITE


@dataclass(frozen=True, slots=True)
class Faults:
    """What the device does to packets that it receives, as a bad network would: probabilities in [0, 1] per packet.

    ``reorder`` holds a packet back until up to eight later ones have passed; ``corrupt`` flips one bit. The same seed
    draws the same faults.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder", "corrupt"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is a probability from 0 to 1, not {value}")
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
        sets S outright. Without a line rate S is 256 KiB.
    ``mice_bytes``
        Messages up to this size travel as one flowlet on one lane. None means one packet.
    ``target_queue_s``
        Queueing delay that congestion control aims at. None takes 2 ms, or 12 packets at the line rate if that is more.
    ``min_timeout_s``, ``retry_time_s``
        The least time before a silent lane sends again (None: 67 ms, or 4 target queues if that is more), and how long
        a peer may stay silent before its requests fail.
    ``busy_poll_s``
        How long the progress thread and ``Request.wait`` spin before they sleep.
    ``idle_peer_s``
        QPs of a peer are dropped when it has had no connection for so long.
    ``faults``
        Injected on reception, for tests.

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
    ) -> None:
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
        ):
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} must be {least} to {most}, not {value}")
        faults = faults or Faults()
        self.address = address
        self.lanes = lanes
        self.policy: Policy = policy
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
            fault_seed=faults.seed,
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
        retransmits, timeouts and round trips in seconds; ``discards``: packets thrown away, by reason; ``qps``,
        ``peers`` and ``connections`` that exist now.
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
