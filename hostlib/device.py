# SPDX-License-Identifier: Apache-2.0
"""Devices, which applications open first.

The native engine defines and checks their options: hostlib/native/src/engine/options.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any, Literal, Self

from hostlib import _engine

Backend = Literal["soft", "tcp", "verbs"]
BackendChoice = Literal[Backend, "auto"]
Policy = Literal["ecmp", "pinned", "adaptive", "controller"]
CongestionControl = Literal["delay", "fixed_window"]
LanesPer = Literal["peer", "host"]

_FIRST_SOURCE_PORT = 0xC000


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults that the device injects into what it receives, for tests. ``soft`` has all but ``cut``; ``tcp``, which
    repairs faults of packets, has ``cut`` and ``dead``; ``verbs`` has none.

    ``drop``, ``duplicate``, ``reorder``, ``corrupt``
        Probability per packet, 0 to 1: the packet is dropped, delivered twice, delivered after later packets, or has
        one bit flipped.
    ``reorder_packets``
        A reordered packet is held back until 1 to this number of later packets have passed; 1 to 4096.
    ``cut``
        Probability per system call that sends on a connection, 0 to 1: the connection ends there.
    ``dead``
        Probability per source port, 0 to 1: its path dies, and no later packet from it arrives.
    ``dead_after``
        Packets of such a port that arrive before its path dies, of ``tcp`` messages and advertisements; 0 to 2**64 - 1.
    ``seed``
        The same seed draws the same faults; 0 to 2**64 - 1.

    Raises ValueError when a value is out of range, TypeError when it is not a number.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    reorder_packets: int = 8
    cut: float = 0.0
    dead: float = 0.0
    dead_after: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            _engine.check_option(f"faults.{field.name}", getattr(self, field.name))


def local_interfaces() -> list[tuple[str, str, int]]:
    """Name, IP address and MTU in bytes of every interface that a device can be opened on."""
    return _engine.interfaces()


def default_busy_poll_s() -> float:
    """The spinning time in seconds of devices that set none: 50 microseconds, or 0 on one or two cores.

    Spinning pays only where a core is free for it.
    """
    return 50e-6 if len(os.sched_getaffinity(0)) > 2 else 0.0


class Device:
    """A NIC, named by its IP address, with m lanes and one progress thread. A context manager.

    Several NICs act as one if their addresses are joined by ``+`` (docs/nic-fusion.md).

    Sizes are in bytes, times in seconds, rates in bits per second. None leaves the choice to the device.

    ``address``
        IPv4 or IPv6 address of a local interface, or those of 2 to 4, as ``"10.0.0.1+10.1.0.1"``, with at least as many
        lanes. Link-local IPv6 addresses are not supported.
    ``lanes``
        m, the number of lanes, 1 to 1024. Each lane has its source port and, towards each peer, its QP.
    ``lanes_per``
        What m lanes are for. ``peer``: each peer has m. ``host``: all peers share m and take turns (section 5.3 of the
        paper). Short messages take no turn. A peer that does not answer, or whose path of a lane is dead, then holds
        up what is sent to others on that lane. Each device has m: several processes of a host do not share them.
    ``policy``
        How the source ports are chosen. ``ecmp``: at random (m = 1 is plain ECMP, m > 1 is ParaLet). ``pinned``:
        from ``ports``. ``adaptive``: at random, and a lane that times out or whose round trip stays bad moves to
        another port. ``controller``: at random; elephants are announced to a path service (docs/path-service.md), and
        their lanes move to the ports that it assigns. While the service is unreachable, late or sends invalid answers,
        ``controller`` behaves as ``ecmp``.
    ``ports``
        For ``pinned``: the source ports (49152 to 65535) of lane 0, 1, .. by peer address. A list with fewer ports than
        lanes repeats. Peers without a list get random ports.
    ``segments``
        For ``pinned`` and ``soft`` over IPv6: by peer address, a list for each of its ``ports``, of the 1 to 16 IPv6
        nodes that packets from that port pass in this order (segment routing, RFC 8754; docs/host-policy.md). Needs no
        privilege. Packets carry 24 bytes more, and 16 for each node.
    ``seed``
        Makes random ports reproducible; 0 to 2**64 - 1. None: unpredictable.
    ``path_mtu``
        Payload bytes per packet, at most: 256, 512, 1024, 2048 or 4096. None: for each peer the largest that the MTU of
        the route to it allows, or with ``verbs`` that of the NIC's port.
    ``shards``
        For ``soft`` and ``tcp``: cores that move the device's packets, at most as many as lanes; 1 to 16. 0: one for
        each 25 Gbit/s of the NIC, on at most half of the cores that the process may use.
    ``line_rate_bps``
        Paces all lanes together, each at its share; 1 to 1e15. None: no pacing.
    ``base_rtt_s``
        Round trip of the idle network. Congestion control counts what exceeds it as queueing delay. None: the smallest
        round trip measured. With a line rate, a measured round trip is believed only up to a 32nd of
        ``target_queue_s``: a longer one may already contain queueing. Give the round trip where paths are longer.
    ``flowlet_bytes``
        S, the size of a flowlet, at most 2 GiB. None: S = 4 BDP / m (section 5.2 of the paper), of ``line_rate_bps``
        and the base round trip, given or measured. Without a line rate ``verbs`` takes the speed of the NIC's port, and
        S is between 16 KiB and 2 MiB; with ``soft`` and ``tcp`` S is 2 MiB.
    ``mice_bytes``
        Messages up to this size are one flowlet on one lane; at most 2 GiB. None: one packet.
    ``eager_bytes``
        For ``soft`` and ``tcp``: messages up to this size, at most 16 KiB, may go before their receive is advertised,
        once 8 in a row were that short. 0: none does, from either side.
    ``congestion_control``
        For ``soft``: the law that sets the windows of lanes. ``delay`` follows queueing delay, congestion marks and
        losses. ``fixed_window`` keeps ``window_packets`` in flight whatever happens; it is for comparison.
    ``tcp_congestion``
        For ``tcp``: a congestion control of the kernel by name, such as ``cubic``. None: the kernel's default.
    ``window_packets``
        For ``fixed_window``: packets that a lane may have in flight, 1 to 512. None: 64.
    ``target_queue_s``
        Queueing delay that congestion control aims at, in network and hosts together. None: 2 ms, or 12 packets at the
        line rate if that is longer.
    ``queue_bytes``
        Bytes of a switch's buffer that congestion control between ``soft`` devices aims at, 1 to 2**40. The engine
        divides them by a speed (the line rate if it is set, else the NIC's speed if it is known, else 1 Gbit/s) and
        so gets the target of the delay outside hosts. The target is at least 100 us. Where a line rate is given
        without ``base_rtt_s`` it is at least a quarter of ``target_queue_s``.
    ``min_timeout_s``
        Lower bound of the retransmission timeout. None: 67 ms, or 4 target queues if that is longer. Without a line
        rate a silent lane probes earlier: it retransmits one packet after twice its recent round trip, at least 2 ms.
        With ``verbs`` it is the NIC's timeout, by default a seventh of ``retry_time_s``.
    ``retry_time_s``
        A peer that stays silent for this time is given up, and its requests fail.
    ``busy_poll_s``
        How long the progress thread and ``Request.wait`` spin before they sleep. None: ``default_busy_poll_s()``.
    ``idle_peer_s``
        QPs of a peer without connections are removed after this time.
    ``faults``
        Faults injected into received packets, for tests.
    ``path_service``
        For policy ``controller``: where the path service listens, as ``"10.0.0.9:4792"``, or with a standby
        ``"10.0.0.9:4792,10.0.0.10:4792"``.
    ``token_file``, ``token``
        For policy ``controller``: the token shared with the path service, or a file with it that only its owner may
        read. Give one of them.
    ``tls_ca``, ``tls_certificate``, ``tls_key``
        For policy ``controller``: files in PEM format for TLS to the path service, which needs OpenSSL 3: the CAs from
        one of which its certificate is, the certificate of this host, and its key, which only its owner may read. They
        are read for each connection, so a renewed certificate is used from the next one on. Give all three, or none.
    ``job``
        For policy ``controller``: the job's name, sent with each elephant; up to 64 printable characters without
        blanks.
    ``elephant_bytes``
        For policy ``controller``: messages that follow each other to one peer without a pause are an elephant from this
        size on, 1 to 2**50. Shorter ones finish before an answer could help.
    ``assign_wait_s``
        For policy ``controller``: the longest time that a new elephant waits for its ports. With 0 it starts on random
        ports at once.
    ``probe_rate``
        For policy ``controller``: probes of paths per second at most (0 to 1000000), where the path service asks for
        them. With 0 this device does not offer to probe.
    ``revert_rtt``, ``revert_loss``
        For policy ``controller``: a lane leaves its assigned port when its round trip stays above ``revert_rtt`` (1 to
        1e6) times that of the peer's best lane and above four target queues, or when it retransmits more than
        ``revert_loss`` (1e-6 to 1e6) packets per packet sent, or when it times out twice without a flowlet
        finished in between. The next assignment moves it again.
    ``reconnect_s``
        For policy ``controller``: the shortest and the longest delay between attempts to reach the path service, each
        at least 0.001.
    ``backend``
        ``soft``: RoCEv2 over UDP sockets, without privilege. ``verbs``: an RDMA NIC or the kernel's SoftRoCE, through
        libibverbs; the NIC then controls congestion and pacing. Devices of both kinds talk to each other. ``tcp``: a
        TCP connection per lane and direction, without privilege; such devices talk only to their own kind. ``auto``:
        ``verbs`` where an address is that of an active RoCE port, else ``tcp``; the attribute ``backend`` says which.
    ``gid_index``
        For ``verbs``: another RoCEv2 GID of the same port, 0 to 255. None: the GID of the address.
    ``traffic_class``
        The IPv4 TOS or IPv6 traffic class byte of all packets (DSCP and ECN), 0 to 255. Without ECN bits ``soft`` sends
        ECT(0) to peers that report congestion marks, and its lanes slow down by them; other ECN bits are sent as they
        are.
    ``service_level``
        For ``verbs``: the priority of all packets, 0 to 7.
    ``pkey_index``
        For ``verbs``: index of the partition key in the port's table, 0 to 65535.

    Raises DeviceError when no local interface has the address, a source port is taken, or the path service's address or
    token is unusable; ValueError for values that are out of range or exclude each other; TypeError for wrong types.
    """

    def __init__(
        self,
        address: str,
        *,
        lanes: int = 8,
        lanes_per: LanesPer = "peer",
        shards: int = 1,
        policy: Policy = "ecmp",
        ports: Mapping[str, Sequence[int]] | None = None,
        segments: Mapping[str, Sequence[Sequence[str]]] | None = None,
        seed: int | None = None,
        path_mtu: int | None = None,
        line_rate_bps: float | None = None,
        base_rtt_s: float | None = None,
        flowlet_bytes: int | None = None,
        mice_bytes: int | None = None,
        eager_bytes: int = 16_384,
        congestion_control: CongestionControl = "delay",
        tcp_congestion: str | None = None,
        window_packets: int | None = None,
        target_queue_s: float | None = None,
        queue_bytes: int = 250_000,
        min_timeout_s: float | None = None,
        retry_time_s: float = 10.0,
        busy_poll_s: float | None = None,
        idle_peer_s: float = 2.0,
        faults: Faults | None = None,
        path_service: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        token: str | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_certificate: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        job: str | None = None,
        elephant_bytes: int = 2**20,
        assign_wait_s: float = 0.0,
        probe_rate: float = 100.0,
        revert_rtt: float = 4.0,
        revert_loss: float = 0.25,
        reconnect_s: tuple[float, float] = (0.05, 10.0),
        backend: BackendChoice = "soft",
        gid_index: int | None = None,
        traffic_class: int = 0,
        service_level: int = 0,
        pkey_index: int = 0,
    ) -> None:
        # Every keyword argument is an option of the engine by the same name; a test compares the two.
        options = {name: value for name, value in locals().items() if name not in ("self", "address")}
        options["ports"] = {peer: list(numbers) for peer, numbers in (ports or {}).items()} or None
        lists = {peer: [list(lane) for lane in lanes] for peer, lanes in (segments or {}).items()}
        options["segments"] = lists or None
        for name in ("token_file", "tls_ca", "tls_certificate", "tls_key"):
            options[name] = None if options[name] is None else os.fspath(options[name])
        options["busy_poll_s"] = default_busy_poll_s() if busy_poll_s is None else busy_poll_s
        del options["faults"]
        if faults is not None:
            options |= {f"faults.{name}": value for name, value in asdict(faults).items()}
        self.address = address
        self.lanes = lanes
        self.policy: Policy = policy
        self.backend: Backend = _engine.choose_backend(address)[0] if backend == "auto" else backend
        options["backend"] = self.backend
        given = {name: value for name, value in options.items() if value is not None}
        self._engine = _engine.Device(address, given)

    @property
    def path_mtu(self) -> int:
        """Payload bytes per packet on the interface of the device's address. Lanes to a peer follow the route to it."""
        return self._engine.path_mtu

    @property
    def udp_port(self) -> int:
        """Port on which packets arrive: 4791, or another one when a process on this address already has 4791.

        Of ``tcp`` the TCP port that lanes of peers connect to.
        """
        return self._engine.udp_port

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that opened the device.

        Every call on the device, its connections, listeners and requests under way raises DeviceError then, but for
        ``close``, which forgets it here. The child may open devices of its own. It does not disturb its parent.
        """
        return self._engine.inherited

    def listen(self) -> _engine.Listener:
        """Open a listener. Its handle lets peers connect. Raises DeviceError when the device is closed."""
        return self._engine.listen()

    def connect(self, handle: bytes, timeout_s: float = 10.0) -> _engine.Connection:
        """Connect to the listener that made the 128-byte handle.

        Raises TransportError when the peer refuses or is unreachable, TimeoutError when it does not answer within
        ``timeout_s`` seconds, and ValueError when the bytes are not a handle.
        """
        return self._engine.connect(handle, timeout_s)

    def register(self, buffer: Any) -> _engine.MemoryRegion:
        """Register a writable C-contiguous buffer (numpy array, bytearray, mmap) once for many transfers.

        Raises BufferError or TypeError when the object exports no such buffer.
        """
        return self._engine.register(buffer)

    def set_port(self, peer: str, lane: int, port: int) -> bool:
        """Move a lane to another source port (49152 to 65535) as soon as no flowlet is outstanding on it.

        Returns False when the peer or the lane does not exist. Raises ValueError for a port outside the range.
        """
        if not _FIRST_SOURCE_PORT <= port <= 0xFFFF:
            raise ValueError(f"source port {port} is outside 49152..65535")
        return self._engine.set_port(peer, lane, port)

    def counters(self) -> dict[str, Any]:
        """Counters since the device was opened.

        ``lanes``
            One row per (peer, lane): the index of its NIC in the address (``member``), its ``port``, how that was set
            (``port_method``), ``qpn``, bytes, packets, flowlets, ``retransmits``, ``timeouts``, ``moves`` to other
            ports, and round trips in seconds.
        ``messages``
            Finished ``sends`` and ``receives`` with their bytes, and the number of requests that ``failed``.
        ``discards``
            Received packets that were thrown away, by reason.
        ``qps``, ``peers``, ``connections``
            How many exist now.
        ``path_client``
            Only with policy ``controller``: whether the path service is ``connected``, since when on the clock of
            ``time.monotonic()`` (``since_s``), and the number of ``connections`` to it; elephants that are open
            (``elephants``), were ``announced``, got ports (``assigned``), began on random ports (``ecmp_starts``) and
            ended (``released``); messages sent (``announces``) and received (``assigns``, of which ``pushes`` came
            unasked and ``stale`` came too late), invalid lines (``invalid``), events ``dropped``, lanes that
            ``reverted`` to random ports, and assigned ports that another program holds (``unbound``).
        """
        return self._engine.counters()

    def close(self) -> None:
        """Close all connections and stop the device. Pending requests fail. Closing twice is allowed."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
