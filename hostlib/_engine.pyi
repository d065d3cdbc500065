# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

class TransportError(Exception):
    """A connection or a request failed. The text gives the reason."""

class DeviceError(TransportError):
    """A device cannot be opened, or has failed."""

class ConnectionClosed(TransportError):
    """This side or the peer has closed the connection."""

class Request:
    """A send or a receive under way."""

    @property
    def done(self) -> bool:
        """Whether it has finished or failed."""
    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the end and returns the bytes moved.

        Raises TransportError or ConnectionClosed when it failed, TimeoutError when `timeout_s` seconds were not enough
        (the request goes on).
        """

class MemoryRegion:
    """Memory registered once for many receives or sends."""

    @property
    def length(self) -> int:
        """The size of the region in bytes."""
    def slice(self, offset: int, length: int) -> MemoryRegion:
        """A part of the region, in bytes. Raises IndexError outside the region."""
    def close(self) -> None:
        """Deregisters the memory. Raises BufferError while requests on it are under way."""

class Connection:
    """Messages to and from one peer, in order per tag (0 to 2^32 - 1)."""

    def send(self, buffer: Any, tag: int = 0) -> Request:
        """Starts sending a buffer or a memory region; never blocks. Do not change it before the request is done."""
    def recv(self, buffer: Any, tag: int = 0) -> Request:
        """Starts receiving into a writable buffer or a memory region; never blocks. The message may be shorter."""
    def close(self) -> None:
        """Fails receives, and sends not yet started, on both sides. Closing twice is allowed."""
    @property
    def closed(self) -> bool:
        """Whether this side has closed it."""
    @property
    def peer(self) -> str:
        """The peer's IP address."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class Listener:
    """A listener, to which peers connect."""

    @property
    def handle(self) -> bytes:
        """128 bytes with which a peer can connect; pass them to the peer by any means."""
    def accept(self, timeout_s: float | None = None) -> Connection:
        """The next connection, of the peers' addresses in turn. One that has ended comes when no other waits.

        Raises TimeoutError when none comes within `timeout_s` seconds; None: no limit.
        """
    def close(self) -> None:
        """Stops listening; accepted connections stay."""

class Device:
    def __init__(self, address: str, options: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...
    def listen(self) -> Listener: ...
    def connect(self, handle: bytes, timeout_s: float | None) -> Connection: ...
    def register(self, buffer: Any) -> MemoryRegion: ...
    def set_port(self, peer: str, lane: int, port: int) -> bool: ...
    def counters(self) -> dict[str, Any]: ...
    @property
    def path_mtu(self) -> int: ...
    @property
    def udp_port(self) -> int: ...
    @property
    def inherited(self) -> bool: ...

class Operation:
    """A collective, send or receive of a `hostlib.collectives.Group`. Thread-safe."""

    @property
    def id(self) -> int:
        """A number that no other operation of the process has."""
    @property
    def done(self) -> bool:
        """Whether it has finished or failed. Does not block, and makes no progress."""
    @property
    def error(self) -> str | None:
        """Why it failed; None while it is under way, and when it succeeded."""
    @property
    def source(self) -> int | None:
        """Of a finished receive: the sender's rank."""
    def wait(self, timeout_s: float | None = None) -> None:
        """Waits for the end. The calling thread moves packets itself where it can.

        Raises TransportError or ConnectionClosed when it failed, TimeoutError when `timeout_s` seconds were not enough
        (the operation goes on).
        """

_Blocks = Sequence[tuple[int, int]]

class Group:
    def __init__(self, device: Device, rank: int, size: int) -> None: ...
    @property
    def handle(self) -> bytes: ...
    def set_handles(self, handles: Sequence[bytes]) -> None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def inherited(self) -> bool: ...
    def all_reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, timeout_s: float | None, *flags: bool
    ) -> Operation: ...
    def reduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: str,
        op: str,
        root: int,
        timeout_s: float | None,
        *flags: bool,
    ) -> Operation: ...
    def broadcast(self, address: int, nbytes: int, root: int, timeout_s: float | None, *flags: bool) -> Operation: ...
    def all_gather(self, source: int, target: _Blocks, timeout_s: float | None, *flags: bool) -> Operation: ...
    def reduce_scatter(
        self, source: _Blocks, target: int, dtype: str, op: str, timeout_s: float | None, *flags: bool
    ) -> Operation: ...
    def all_to_all(self, source: _Blocks, target: _Blocks, timeout_s: float | None, *flags: bool) -> Operation: ...
    def gather(
        self, source: int, nbytes: int, target: _Blocks, root: int, timeout_s: float | None, *flags: bool
    ) -> Operation: ...
    def scatter(
        self, source: _Blocks, target: int, nbytes: int, root: int, timeout_s: float | None, *flags: bool
    ) -> Operation: ...
    def barrier(self, timeout_s: float | None, *flags: bool) -> Operation: ...
    def send(
        self, address: int, nbytes: int, peer: int, tag: int, timeout_s: float | None, *flags: bool
    ) -> Operation: ...
    def recv(
        self, address: int, nbytes: int, peer: int | None, tag: int, timeout_s: float | None, *flags: bool
    ) -> Operation: ...
    def take_finished(self, timeout_s: float | None) -> list[Operation]: ...
    def abort(self, reason: str) -> None: ...
    def close(self) -> None: ...

class Prober:
    """Probes of paths. `hostlib.probing` says what the arguments mean."""

    def __init__(
        self, *, rate: float, router_rate: float, router_burst: float, timeout_s: float, attempts: int, window: int
    ) -> None: ...
    def add_target(self, from_: str, to: str, *, destination_port: int, tcp: bool, qpn: int) -> int: ...
    def add(self, target: int, ttl: int, ports: Sequence[int]) -> None: ...
    def run(self, timeout_s: float) -> bool: ...
    def drop_waiting(self) -> int: ...
    def observations(
        self,
    ) -> list[tuple[int, int, int, Literal["hop", "destination", "none"], str | None, float | None, float]]: ...
    def failures(self) -> list[tuple[int, int, int, int, str | None]]: ...
    def counters(self) -> dict[str, int]: ...

def wait_any(requests: Sequence[Request], timeout_s: float | None = None) -> int:
    """The index of the first request that has finished or failed.

    Raises TimeoutError when none has within `timeout_s` seconds; None: no limit.
    """

def options() -> list[dict[str, Any]]: ...
def check_option(name: str, value: Any) -> None: ...
def build() -> tuple[str, str]: ...
def counters() -> dict[str, dict[str, str]]: ...
def parameters() -> list[str]: ...
def read_parameters(environment: Mapping[bytes, bytes]) -> dict[str, Any]: ...
def choose_backend(address: str) -> tuple[Literal["tcp", "verbs"], str]: ...
def choose_addresses(
    local: Sequence[tuple[str, str, int]] | None, addresses: Sequence[str], names: str, rather_ipv4: bool | None
) -> list[str]: ...
def slowdown(m: int, hosts: float) -> float: ...
def lanes_for(slowdown: float, hosts: float) -> int: ...
def flowlet_bytes(bdp_bytes: float, m: int, path_mtu: int) -> int: ...
def interfaces() -> list[tuple[str, str, int]]: ...
def icrc(*, src: str, dst: str, src_port: int, dst_port: int, ip_id: int, transport: bytes) -> int: ...
