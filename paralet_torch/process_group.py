# SPDX-License-Identifier: Apache-2.0
"""The process group of backend ``paralet``: torch.distributed's operations as `hostlib.collectives` over one device.

torch looks methods up by name: those that 2.13 renamed (``all_gather_single`` for ``_allgather_base``, and the like)
have both names. In ``cpu:paralet,cuda:nccl`` this group replaces torch's own and passes tensors of other devices on to
their backends.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from hostlib import TransportError
from hostlib.collectives import Group, Operation
from paralet_torch import devices
from paralet_torch.elsewhere import devices_of, forget, other_backends
from paralet_torch.memory import Staged, block_bytes, reduction, same_bytes, same_dtype, the_only
from paralet_torch.monitored_barrier import monitored_barrier
from paralet_torch.pending import PendingWorks
from paralet_torch.rendezvous import check_addresses, exchange
from paralet_torch.sparse import all_reduce_sparse
from paralet_torch.work import ParaletWork

NAME = "paralet"

_HANDLE_BYTES = 128
Tensors = list[torch.Tensor]


def _by_device(method: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the call on to the backend of the tensors' device unless that is the CPU."""

    @functools.wraps(method)
    def call(self: ParaletProcessGroup, *args: Any, **options: Any) -> Any:
        tensor = next(_tensors(args), None)
        if tensor is None or tensor.device.type == "cpu":
            return method(self, *args, **options)
        return getattr(other_backends(self, tensor.device), method.__name__)(*args, **options)

    return call


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


class ParaletProcessGroup(dist.ProcessGroup):
    """One rank of a group of `size` ranks, which find each other through the `store`.

    `timeout` limits every operation that has no limit of its own. An operation that fails or is late makes the group
    fail on all ranks, and later operations too; create a new group then. A rank that dies is noticed within
    PARALET_RETRY_TIME.

    Raises ValueError for wrong `PARALET_*` variables, DeviceError when the device cannot be opened, and DistStoreError
    when the others do not come.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, *, timeout: timedelta, name: str = "") -> None:
        super().__init__(rank, size)  # with the store torch's base class cannot be inherited from
        self._name = name
        self._description = ""
        self._timeout = timeout
        self._store = store
        self._rank, self._size = rank, size
        self._sequence = 0
        self._barriers = 0
        self._coalesced: list[ParaletWork] | None = None
        self._shut = threading.Lock()
        self._open = True
        self._device = devices.acquire(store)
        try:
            self._group = Group(
                self._device,
                rank,
                size,
                functools.partial(self._exchange, self._device.address),
                timeout_s=timeout.total_seconds(),
            )
        except BaseException:
            devices.release(self._device)
            raise
        self._pending = PendingWorks(self._group, name)

    def _exchange(self, address: str, handle: bytes) -> list[bytes]:
        """Publish this rank's handle and address. Returns the handles of all ranks."""

        def check(values: list[str]) -> None:
            check_addresses(self._rank, [value[2 * _HANDLE_BYTES :] for value in values])

        values = exchange(self._store, self._rank, self._size, handle.hex() + address, self._timeout, check)
        return [bytes.fromhex(value[: 2 * _HANDLE_BYTES]) for value in values]

    # -- what torch asks about a group ---------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return NAME

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, group_name: str) -> None:
        self._name = group_name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, group_desc: str) -> None:
        self._description = group_desc

    def get_group_store(self) -> dist.Store:
        return self._store

    def __repr__(self) -> str:
        return f"<{NAME} process group {self._name or 'without a name'}: rank {self._rank} of {self._size}>"

    @property
    def _device_types(self) -> list[torch.device]:
        """Devices that torch takes for those of the group's tensors."""
        return devices_of(self)

    def _get_backend(self, device: torch.device) -> Any:
        """What runs operations of tensors on a device. For the CPU it is this group: torch has no class of back ends
        that Python could implement. Raises ValueError when there is none.
        """
        if torch.device(device).type == "cpu":
            return self
        return other_backends(self, torch.device(device))._get_backend(device)

    # What torch asks of a backend.
    supports_splitting = False
    supports_shrinking = False
    supports_coalescing = True
    supports_time_estimate = False

    def name(self) -> str:
        return NAME

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit of later operations that have no limit of their own."""
        self._timeout = timeout
        self._group.timeout_s = timeout.total_seconds()

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # -- collectives ---------------------------------------------------------------------------------------------

    @_by_device
    def allreduce(self, tensors: Tensors | torch.Tensor, opts: Any = None, **options: Any) -> ParaletWork:
        tensor = the_only(tensors, "allreduce")
        opts = _options(c10d.AllreduceOptions, opts, options)
        if tensor.layout == torch.sparse_coo:
            return all_reduce_sparse(self, tensor, opts)
        return self._submit("allreduce", [self._allreduce(tensor, opts)], [tensor], opts)

    @_by_device
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> ParaletWork:
        opts = opts or c10d.AllreduceCoalescedOptions()
        same_dtype(tensors, "allreduce_coalesced")
        return self._submit("allreduce", [self._allreduce(tensor, opts) for tensor in tensors], tensors, opts)

    def _allreduce(self, tensor: torch.Tensor, opts: Any) -> _Step:
        how = reduction(tensor, opts.reduceOp)
        staged = Staged.in_place(tensor, how)

        def issue(**common: Any) -> Operation:
            memory = staged.address
            return self._group.all_reduce(memory, memory, staged.count(how), how.dtype, how.op, **common)

        return _Step(issue, [staged], staged.settle)

    @_by_device
    def reduce(self, tensors: Tensors | torch.Tensor, opts: Any = None, **options: Any) -> ParaletWork:
        tensor = the_only(tensors, "reduce")
        opts = _options(c10d.ReduceOptions, opts, options)
        how = reduction(tensor, opts.reduceOp)
        is_root = opts.rootRank == self._rank
        staged = Staged.in_place(tensor, how) if is_root else Staged.source(tensor, how)

        def issue(**common: Any) -> Operation:
            memory = staged.address
            target = memory if is_root else 0
            count = staged.count(how)
            return self._group.reduce(memory, target, count, how.dtype, how.op, root=opts.rootRank, **common)

        settle = staged.settle if is_root else None
        return self._submit("reduce", [_Step(issue, [staged], settle)], [tensor], opts)

    @_by_device
    def broadcast(self, tensors: Tensors | torch.Tensor, opts: Any = None, **options: Any) -> ParaletWork:
        tensor = the_only(tensors, "broadcast")
        opts = _options(c10d.BroadcastOptions, opts, options)
        staged = Staged.in_place(tensor)

        def issue(**common: Any) -> Operation:
            return self._group.broadcast(staged.address, staged.nbytes, root=opts.rootRank, **common)

        return self._submit("broadcast", [_Step(issue, [staged], staged.settle)], [tensor], opts)

    @_by_device
    def allgather(self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None) -> ParaletWork:
        source = the_only(input_tensors, "allgather")
        (outputs,) = output_tensors
        step = self._allgather(outputs, source)
        return self._submit("allgather", [step], outputs, opts or c10d.AllgatherOptions())

    @_by_device
    def allgather_coalesced(self, output_lists: list[Tensors], input_list: Tensors, opts: Any = None) -> ParaletWork:
        if len(output_lists) != self._size or any(len(outputs) != len(input_list) for outputs in output_lists):
            raise ValueError("allgather_coalesced needs a list for every rank, each with an output for every input")
        steps = [
            self._allgather([outputs[i] for outputs in output_lists], source) for i, source in enumerate(input_list)
        ]
        outputs = [output for outputs in output_lists for output in outputs]
        return self._submit("allgather", steps, outputs, opts or c10d.AllgatherOptions())

    def _allgather(self, outputs: Tensors, source: torch.Tensor) -> _Step:
        self._check_blocks(outputs, "allgather")
        same_dtype([source, *outputs], "allgather")
        same_bytes(source, outputs[self._rank], "allgather", "its own output")
        taken, blocks = Staged.source(source), [Staged.target(output) for output in outputs]

        def issue(**common: Any) -> Operation:
            addresses = [block.address for block in blocks]
            return self._group.all_gather(taken.address, addresses, block_bytes(blocks), **common)

        return _Step(issue, [taken, *blocks], *(block.settle for block in blocks))

    @_by_device
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> ParaletWork:
        step = self._allgather_single(output, input)
        return self._submit("allgather", [step], [output], opts or c10d.AllgatherOptions())

    @_by_device
    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> ParaletWork:
        steps = [self._allgather_single(output, source) for output, source in zip(outputs, inputs, strict=True)]
        return self._submit("allgather", steps, outputs, opts or c10d.AllgatherOptions())

    def _allgather_single(self, output: torch.Tensor, source: torch.Tensor) -> _Step:
        same_dtype([output, source], "all_gather_single")
        if output.numel() != source.numel() * self._size:
            raise ValueError(
                f"all_gather_single needs an output of {self._size} times the input's {source.numel()} elements; "
                f"it has {output.numel()}"
            )
        taken, target = Staged.source(source), Staged.target(output)

        def issue(**common: Any) -> Operation:
            return self._group.all_gather(taken.address, target.address, taken.nbytes, **common)

        return _Step(issue, [taken, target], target.settle)

    @_by_device
    def gather(self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None) -> ParaletWork:
        opts = opts or c10d.GatherOptions()
        source = the_only(input_tensors, "gather")
        taken, blocks = Staged.source(source), list[Staged]()
        if opts.rootRank == self._rank:
            (outputs,) = output_tensors
            self._check_blocks(outputs, "gather")
            same_dtype([source, *outputs], "gather")
            for output in outputs:
                same_bytes(source, output, "gather", "every output")
            blocks = [Staged.target(output) for output in outputs]

        def issue(**common: Any) -> Operation:
            addresses = [block.address for block in blocks] or None
            return self._group.gather(taken.address, addresses, taken.nbytes, root=opts.rootRank, **common)

        step = _Step(issue, [taken, *blocks], *(block.settle for block in blocks))
        return self._submit("gather", [step], [tensor for outputs in output_tensors for tensor in outputs], opts)

    @_by_device
    def scatter(self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = None) -> ParaletWork:
        opts = opts or c10d.ScatterOptions()
        output = the_only(output_tensors, "scatter")
        target, blocks = Staged.target(output), list[Staged]()
        if opts.rootRank == self._rank:
            (inputs,) = input_tensors
            self._check_blocks(inputs, "scatter")
            same_dtype([output, *inputs], "scatter")
            for source in inputs:
                same_bytes(source, output, "scatter", "the output")
            blocks = [Staged.source(source) for source in inputs]

        def issue(**common: Any) -> Operation:
            addresses = [block.address for block in blocks] or None
            return self._group.scatter(addresses, target.address, target.nbytes, root=opts.rootRank, **common)

        return self._submit("scatter", [_Step(issue, [target, *blocks], target.settle)], [output], opts)

    @_by_device
    def reduce_scatter(self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = None) -> ParaletWork:
        opts = opts or c10d.ReduceScatterOptions()
        output = the_only(output_tensors, "reduce_scatter")
        (inputs,) = input_tensors
        self._check_blocks(inputs, "reduce_scatter")
        same_dtype([output, *inputs], "reduce_scatter")
        same_bytes(inputs[self._rank], output, "reduce_scatter", "the output")
        how = reduction(output, opts.reduceOp)
        target, blocks = Staged.target(output), [Staged.source(source, how) for source in inputs]

        def issue(**common: Any) -> Operation:
            addresses, counts = [block.address for block in blocks], [block.count(how) for block in blocks]
            return self._group.reduce_scatter(addresses, target.address, counts, how.dtype, how.op, **common)

        step = _Step(issue, [target, *blocks], target.settle)
        return self._submit("reduce_scatter", [step], [output], opts)

    @_by_device
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> ParaletWork:
        opts = opts or c10d.ReduceScatterOptions()
        step = self._reduce_scatter_single(output, input, opts)
        return self._submit("reduce_scatter", [step], [output], opts)

    @_by_device
    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> ParaletWork:
        opts = opts or c10d.ReduceScatterOptions()
        pairs = zip(outputs, inputs, strict=True)
        steps = [self._reduce_scatter_single(output, source, opts) for output, source in pairs]
        return self._submit("reduce_scatter", steps, outputs, opts)

    def _reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> _Step:
        same_dtype([output, source], "reduce_scatter_single")
        if source.numel() != output.numel() * self._size:
            raise ValueError(
                f"reduce_scatter_single needs an input of {self._size} times the output's {output.numel()} elements; "
                f"it has {source.numel()}"
            )
        how = reduction(output, opts.reduceOp)
        target, taken = Staged.target(output), Staged.source(source, how)

        def issue(**common: Any) -> Operation:
            count = target.count(how)
            return self._group.reduce_scatter(taken.address, target.address, count, how.dtype, how.op, **common)

        return _Step(issue, [target, taken], target.settle)

    @_by_device
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> ParaletWork:
        for tensors in (output_tensors, input_tensors):
            self._check_blocks(tensors, "alltoall")
        same_dtype([*output_tensors, *input_tensors], "alltoall")
        sources = [Staged.source(tensor) for tensor in input_tensors]
        targets = [Staged.target(tensor) for tensor in output_tensors]

        def issue(**common: Any) -> Operation:
            given, taken = [block.address for block in sources], [block.address for block in targets]
            return self._group.all_to_all(given, taken, block_bytes(sources), block_bytes(targets), **common)

        step = _Step(issue, [*sources, *targets], *(block.settle for block in targets))
        return self._submit("alltoall", [step], output_tensors, opts or c10d.AllToAllOptions())

    @_by_device
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> ParaletWork:
        same_dtype([output, input], "all_to_all_single")
        source, target = Staged.source(input), Staged.target(output)
        sent = self._split(input, input_split_sizes, "input")
        received = self._split(output, output_split_sizes, "output")

        def issue(**common: Any) -> Operation:
            return self._group.all_to_all(source.address, target.address, sent, received, **common)

        step = _Step(issue, [source, target], target.settle)
        return self._submit("alltoall", [step], [output], opts or c10d.AllToAllOptions())

    def _split(self, tensor: torch.Tensor, rows: Sequence[int], which: str) -> list[int]:
        """Bytes for every rank. `rows` are sizes in dimension 0; without any, the parts are equal."""
        length = tensor.shape[0] if tensor.dim() else 1
        if not rows:
            if length % self._size:
                raise ValueError(
                    f"all_to_all_single: the {which}'s {length} rows do not divide equally among {self._size} ranks"
                )
            rows = [length // self._size] * self._size
        if len(rows) != self._size or sum(rows) != length or min(rows) < 0:
            raise ValueError(
                f"all_to_all_single: {which}_split_sizes must be {self._size} sizes of {length} rows in all, "
                f"not {list(rows)}"
            )
        row_bytes = tensor.numel() // length * tensor.element_size() if length else 0
        return [part * row_bytes for part in rows]

    def barrier(self, opts: Any = None, **options: Any) -> ParaletWork:
        opts = _options(c10d.BarrierOptions, opts, options)
        return self._submit("barrier", [_Step(self._group.barrier, [])], [], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier in which rank 0 names the first rank that does not come within `timeout`, or all of them.

        Raises DistBackendError. torch.distributed.monitored_barrier calls it for Gloo only: call the group's.
        """
        self._barriers += 1
        monitored_barrier(self, self._barriers, self._timeout if timeout is None else timeout, wait_all_ranks)

    # -- point to point ------------------------------------------------------------------------------------------

    @_by_device
    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> ParaletWork:
        staged = Staged.source(the_only(tensors, "send"))

        def issue(**common: Any) -> Operation:
            return self._group.send(staged.address, staged.nbytes, dstRank, tag=tag, **common)

        return self._submit("send", [_Step(issue, [staged])], list(tensors))

    @_by_device
    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> ParaletWork:
        return self._receive(the_only(tensors, "recv"), srcRank, tag)

    @_by_device
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> ParaletWork:
        return self._receive(the_only(tensors, "recv"), None, tag)

    def _receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> ParaletWork:
        staged = Staged.target(tensor)

        def issue(**common: Any) -> Operation:
            return self._group.recv(staged.address, staged.nbytes, peer, tag=tag, **common)

        return self._submit("recv", [_Step(issue, [staged], staged.settle)], [tensor])

    # -- coalescing ----------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: torch.device) -> None:
        if device.type != "cpu":
            other_backends(self, device)._start_coalescing(device)
            return
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Any:
        """One work of all operations since `_start_coalescing`. They have started already."""
        if device.type != "cpu":
            return other_backends(self, device)._end_coalescing(device)
        works, self._coalesced = self._coalesced or [], None
        return ParaletWork.of_all(works)

    # -- the end -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close the group. Operations under way fail."""
        with self._shut:
            if self._open:
                self._open = False
                forget(self)
                self._pending.stop()  # closes the group
                devices.release(self._device)

    def abort(self) -> None:
        """Fail the operations under way, here and on the other ranks, and close the group."""
        if self._open and not self._group.inherited:
            self._group.abort(f"{self!r} was aborted")
        self.shutdown()

    # -- all operations ------------------------------------------------------------------------------------------

    def _check_blocks(self, tensors: Tensors, what: str) -> None:
        if len(tensors) != self._size:
            raise ValueError(f"{what} needs one tensor for each of {self._size} ranks, not {len(tensors)}")

    def _submit(self, what: str, steps: Sequence[_Step], outputs: Tensors, opts: Any = None) -> ParaletWork:
        """Start the steps as one work."""
        if not self._open:
            raise dist.DistBackendError(f"{self!r} is destroyed")
        if self._group.inherited:  # before any lock, which a thread of the parent may have held
            raise dist.DistBackendError(
                f"{self!r} is the parent process's: a forked child destroys it and makes its own"
            )
        limit_s = None if opts is None or opts.timeout < timedelta(0) else opts.timeout.total_seconds()
        # A caller that waits at once needs no thread to be woken. Sends and receives do not say whether theirs will.
        asynchronous = opts is None or opts.asyncOp or self._coalesced is not None
        common: dict[str, Any] = {"timeout_s": limit_s, "awaited": not asynchronous, "notify": asynchronous}
        self._sequence += 1
        with self._pending.issuing(asynchronous):
            try:
                operations = [step.issue(**common) for step in steps]
            except TransportError as error:
                raise dist.DistBackendError(f"{what} failed: {error}") from error
            work = ParaletWork(
                f"{what} of {self!r}",
                operations,
                list(outputs),
                [outputs, [step.memory for step in steps]],
                [settle for step in steps for settle in step.settles],
                self._pending.discard,
            )
            self._pending.add(work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # Names before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


class _Step:
    """One operation to be issued, the memory that it uses, and what is to be done when it has succeeded."""

    def __init__(
        self, issue: Callable[..., Operation], memory: Sequence[Staged], *settles: Callable[[], None] | None
    ) -> None:
        self.issue = issue
        self.memory = memory
        self.settles = [settle for settle in settles if settle is not None]


def _options(kind: Callable[[], Any], opts: Any, fields: dict[str, Any]) -> Any:
    """The options of a call, also in the forms ``allreduce(tensor, op=..)`` and ``broadcast(tensor, root=0)``."""
    out = kind()
    if opts is not None and not isinstance(opts, type(out)):
        fields = ({"op": opts} if hasattr(out, "reduceOp") else {"root": opts}) | fields
        opts = None
    if opts is None:
        opts = out
    names = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
    for name, value in fields.items():
        if value is not None:
            setattr(opts, names[name], value)
    return opts
