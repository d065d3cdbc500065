# SPDX-License-Identifier: Apache-2.0
"""Collectives among the ranks of a group, over the lanes of a device.

The native part (hostlib/native/src/collectives) belongs to the module ``hostlib._engine``, because it works on that
module's devices. It runs without the GIL. This module checks arguments and turns them into addresses and sizes.

Memory is given as raw addresses. Nothing but the caller keeps it alive: keep it until the operation is done, also after
``wait`` raised TimeoutError, as the operation then continues.

**Blocks.** Where a collective has a block per rank, an argument of type `Blocks` is either the address of all blocks,
one behind the other in the order of ranks, or a sequence with the address of each. The sizes are given likewise: one
size of every block, or a sequence with the size of each rank's block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Literal, Self, get_args

from hostlib import _engine
from hostlib._engine import Operation
from hostlib.device import Device

__all__ = ["Blocks", "DataType", "Group", "Operation", "ReduceOp"]

DataType = Literal["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool"]
ReduceOp = Literal["sum", "product", "min", "max", "band", "bor", "bxor", "avg"]
Blocks = int | Sequence[int]

HANDLE_BYTES = 128
_ELEMENT_BYTES: dict[str, int] = dict(zip(get_args(DataType), (4, 8, 2, 2, 1, 1, 2, 4, 8, 1), strict=True))


class Group:
    """One rank's end of a group of ranks. A context manager.

    Collectives run one after another, in the order in which they were issued. Their order, sizes, element types,
    operators and roots must be the same on every rank. A difference fails the operation; it never corrupts memory.
    Sends and receives run beside them, matched by the pair of ranks and the tag in the order of issue.

    Every operation takes these keyword arguments:

    ``timeout_s``
        If the operation is not done by then, in seconds from its issue, it fails and so does the group. None: the
        group's.
    ``awaited``
        The caller waits for the operation at once. This saves waking the group's thread. If the caller does not wait,
        the operation goes on only with the next wait or operation.
    ``notify``
        `take_finished` returns the operation when it has ended.

    They raise ValueError for arguments that no group could execute; what goes wrong later is raised by
    `Operation.wait`. Sums of float16 and bfloat16 are computed in float32 and rounded after each step. Integers wrap
    around. For bool, sum and max are `or`, product and min are `and`. Bit operators on floats and the average of bool
    are not defined. The smaller and the larger of a number and NaN is NaN. The order of a reduction depends on sizes
    and the number of ranks only, so equal runs give equal bits, and all ranks get the same bits.

    A group that has failed stays failed: later operations fail at once. A failure closes the connections, so the other
    ranks fail too. A rank that dies fails its peers at once, and a silent rank within 1.25 times the device's
    ``retry_time_s``.

    Parameters
    ----------
    device
        Carries the messages. Several groups may share it. Close the groups before it.
    rank, size
        This rank, 0 to size - 1, and the number of ranks.
    exchange
        Gets this rank's 128 bytes and returns those of all ranks in their order. The constructor calls it once, if the
        group has more than one rank. Connections are made on first use.
    timeout_s
        The default of all operations. None: no limit.

    Raises ValueError for a wrong rank, size or handle, DeviceError when the device is closed.
    """

    def __init__(
        self,
        device: Device,
        rank: int,
        size: int,
        exchange: Callable[[bytes], Sequence[bytes]],
        *,
        timeout_s: float | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self._engine = _engine.Group(device._engine, rank, size)
        self._engine.set_handles(list(exchange(self._engine.handle)) if size > 1 else [self._engine.handle])

    @property
    def error(self) -> str | None:
        """Why the group failed or was closed; None while it works."""
        return self._engine.error

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._engine.closed

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child of the one that made the group.

        Every call on the group and its operations under way raises DeviceError then, but for `close`.
        """
        return self._engine.inherited

    def all_reduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: DataType,
        op: ReduceOp = "sum",
        *,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """Reduce ``count`` elements at ``source`` over all ranks; every rank gets the result at ``target``.

        ``target`` may be ``source``; otherwise they must not overlap.
        """
        return self._engine.all_reduce(source, target, _size(count), dtype, op, self._limit(timeout_s), awaited, notify)

    def reduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: DataType,
        op: ReduceOp = "sum",
        *,
        root: int,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """As `all_reduce`, but only ``root`` gets the result. Other ranks' ``target`` is not used."""
        return self._engine.reduce(
            source, target, _size(count), dtype, op, root, self._limit(timeout_s), awaited, notify
        )

    def broadcast(
        self,
        address: int,
        nbytes: int,
        *,
        root: int,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """Copy ``nbytes`` at ``address`` of ``root`` to ``address`` of all ranks."""
        return self._engine.broadcast(address, _size(nbytes), root, self._limit(timeout_s), awaited, notify)

    def all_gather(
        self,
        source: int,
        target: Blocks,
        nbytes: int | Sequence[int],
        *,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """Copy ``source`` of rank r to block r of every rank's ``target``. ``source`` may be the rank's own block."""
        blocks = self._blocks(target, self._sizes(nbytes))
        return self._engine.all_gather(source, blocks, self._limit(timeout_s), awaited, notify)

    def reduce_scatter(
        self,
        source: Blocks,
        target: int,
        count: int | Sequence[int],
        dtype: DataType,
        op: ReduceOp = "sum",
        *,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """Reduce the blocks at ``source`` over all ranks; rank r gets block r of the result at ``target``.

        ``count`` is in elements. ``source`` does not change, unless ``target`` is the rank's own block of it.
        """
        element = _element_bytes(dtype)
        blocks = self._blocks(source, [n * element for n in self._sizes(count)])
        return self._engine.reduce_scatter(blocks, target, dtype, op, self._limit(timeout_s), awaited, notify)

    def all_to_all(
        self,
        source: Blocks,
        target: Blocks,
        send_bytes: int | Sequence[int],
        receive_bytes: int | Sequence[int] | None = None,
        *,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """Send block r of ``source`` to rank r, and receive block r of ``target`` from rank r.

        The sizes may differ between ranks; without ``receive_bytes`` they are those of ``send_bytes``. Source and
        target must not overlap.
        """
        sent = self._blocks(source, self._sizes(send_bytes))
        received = self._blocks(target, self._sizes(send_bytes if receive_bytes is None else receive_bytes))
        return self._engine.all_to_all(sent, received, self._limit(timeout_s), awaited, notify)

    def gather(
        self,
        source: int,
        target: Blocks | None,
        nbytes: int | Sequence[int],
        *,
        root: int,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """Copy ``source`` of rank r to block r of ``target`` at ``root``. Other ranks' ``target`` is not used."""
        sizes = self._sizes(nbytes)
        blocks = self._blocks_of_root(target, sizes, root)
        return self._engine.gather(source, sizes[self.rank], blocks, root, self._limit(timeout_s), awaited, notify)

    def scatter(
        self,
        source: Blocks | None,
        target: int,
        nbytes: int | Sequence[int],
        *,
        root: int,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """Copy block r of ``source`` at ``root`` to ``target`` of rank r. Other ranks' ``source`` is not used."""
        sizes = self._sizes(nbytes)
        blocks = self._blocks_of_root(source, sizes, root)
        return self._engine.scatter(blocks, target, sizes[self.rank], root, self._limit(timeout_s), awaited, notify)

    def barrier(self, *, timeout_s: float | None = None, awaited: bool = False, notify: bool = False) -> Operation:
        """Done when every rank has issued it."""
        return self._engine.barrier(self._limit(timeout_s), awaited, notify)

    def send(
        self,
        address: int,
        nbytes: int,
        peer: int,
        *,
        tag: int = 0,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """Send to another rank. Done when the data is in the peer's memory. ``tag``: 0 to 2**31 - 1."""
        return self._engine.send(address, _size(nbytes), peer, _tag(tag), self._limit(timeout_s), awaited, notify)

    def recv(
        self,
        address: int,
        nbytes: int,
        peer: int | None = None,
        *,
        tag: int = 0,
        timeout_s: float | None = None,
        awaited: bool = False,
        notify: bool = False,
    ) -> Operation:
        """Receive from rank ``peer``, or from any rank (None); `Operation.source` tells which.

        The message must have exactly ``nbytes``. A receive from any rank connects to all ranks, and fails when one of
        them has left. It takes what no receive from a given rank was issued for.
        """
        return self._engine.recv(address, _size(nbytes), peer, _tag(tag), self._limit(timeout_s), awaited, notify)

    def take_finished(self, timeout_s: float | None = None) -> list[Operation]:
        """Operations issued with ``notify`` that have ended since the last call, oldest first.

        Waits for one, at most ``timeout_s`` seconds (None: no limit). Returns none after that time, and when the group
        is closed. The calling thread does the work of the group's own thread meanwhile. Call it from one thread.
        """
        return self._engine.take_finished(timeout_s)

    def abort(self, reason: str) -> None:
        """Fail the group and its operations with this reason, without waiting. The other ranks fail too."""
        self._engine.abort(reason)

    def close(self) -> None:
        """End operations under way with an error, close the connections, and stop the group's thread.

        Returns when the engine uses none of the callers' memory any more: soon with peers that answer, after up to
        ``retry_time_s`` and two seconds otherwise. Ranks that still finish earlier operations are not disturbed.
        Closing twice is allowed.
        """
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _limit(self, timeout_s: float | None) -> float | None:
        return self.timeout_s if timeout_s is None else timeout_s

    def _sizes(self, given: int | Sequence[int]) -> list[int]:
        sizes = [given] * self.size if isinstance(given, int) else list(given)
        if len(sizes) != self.size:
            raise ValueError(f"{len(sizes)} sizes for {self.size} ranks: give one size, or one per rank")
        return [_size(size) for size in sizes]

    def _blocks(self, given: Blocks, sizes: Sequence[int]) -> list[tuple[int, int]]:
        addresses = list(accumulate(sizes[:-1], initial=given)) if isinstance(given, int) else list(given)
        if len(addresses) != self.size:
            raise ValueError(f"{len(addresses)} addresses for {self.size} ranks: give one address, or one per rank")
        return list(zip(addresses, sizes, strict=True))

    def _blocks_of_root(self, given: Blocks | None, sizes: Sequence[int], root: int) -> list[tuple[int, int]]:
        if self.rank != root:
            return []
        if given is None:
            raise ValueError("the root must give its blocks")
        return self._blocks(given, sizes)


def _size(value: int) -> int:
    if value < 0:
        raise ValueError(f"a size must not be negative, and {value} is")
    return value


def _tag(value: int) -> int:
    if not 0 <= value < 2**31:
        raise ValueError(f"tag must be 0 to {2**31 - 1}, not {value}")
    return value


def _element_bytes(dtype: str) -> int:
    try:
        return _ELEMENT_BYTES[dtype]
    except KeyError:
        raise ValueError(f"dtype '{dtype}' is not supported: it must be one of {', '.join(_ELEMENT_BYTES)}") from None
