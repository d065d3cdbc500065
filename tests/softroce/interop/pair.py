# SPDX-License-Identifier: Apache-2.0
"""A queue pair of the `soft` back end connected to one of the kernel, both driven by one thread."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import raw_qp

from tests.softroce.interop.network import in_namespace
from tests.softroce.interop.rxe_peer import BUFFER_BYTES, Done, RxePeer

SOURCE_PORT = 0xC123
ROCE_PORT = 4791
PSNS = 1 << 24
TIMEOUT_S = 180  # for one message; an emulated machine may share its processor with others


def pattern(length: int) -> bytes:
    """Bytes that show what is missing, doubled or out of place, the same for every run."""
    return random.Random(length).randbytes(length)


@dataclass
class Pair:
    """`soft_done` and `kernel_done` collect completions until they are taken."""

    nic: Any
    qpn: int
    first_psn: int
    peer: RxePeer
    kernel_psn: int
    soft_done: list[dict[str, Any]] = field(default_factory=list)
    kernel_done: list[Done] = field(default_factory=list)

    @classmethod
    @contextmanager
    def connected(
        cls,
        device: str,
        kernel_address: str,
        soft_address: str,
        *,
        path_mtu: int = 1024,
        soft_wraps_within: int = PSNS,
        kernel_psn: int = 0x5A5A5A,
        drop: float = 0.0,
        flow_label: int = 0,
    ) -> Iterator[Pair]:
        """`drop`: the probability that a packet is lost on its way to `soft`, by a fixed seed."""
        with RxePeer(device, kernel_address) as peer:
            with in_namespace():
                nic = raw_qp.soft(soft_address, drop=drop, seed=7, min_timeout_s=0.5, retry_time_s=TIMEOUT_S)
                assert nic.udp_port == ROCE_PORT  # rxe sends to no other
                qpn, psn = nic.create_qp(soft_wraps_within)
                assert nic.connect_qp(
                    qpn,
                    address=kernel_address,
                    remote_qpn=peer.qpn,
                    first_psn=kernel_psn,
                    path_mtu=path_mtu,
                    source_port=SOURCE_PORT,
                )
            peer.connect(
                soft_address,
                remote_qpn=qpn,
                remote_psn=psn,
                psn=kernel_psn,
                path_mtu=path_mtu,
                flow_label=flow_label,
            )
            try:
                yield cls(nic, qpn, psn, peer, kernel_psn)
            finally:
                nic.close()  # a failed test's traceback would keep its port

    def until(self, ready: Callable[[], bool], what: str) -> None:
        """Make progress on the soft side until `ready`."""
        end = time.monotonic() + TIMEOUT_S
        while not ready():
            # That the peer asks again, for what was lost on its way back, finishes no work.
            self.soft_done += [done for done in self.nic.progress(0.005) if done["kind"] != "asked_again"]
            self.kernel_done += self.peer.poll()
            assert time.monotonic() < end, f"no {what} within {TIMEOUT_S} s: {self.nic.statistics(self.qpn)}"

    def take_soft(self, kind: str) -> dict[str, Any]:
        """The next completion of `soft`, which must be of `kind`."""
        self.until(lambda: bool(self.soft_done), f"completion ({kind}) of soft")
        done = self.soft_done.pop(0)
        assert done["kind"] == kind, done
        return done

    def take_kernel(self) -> Done:
        """The kernel's next completion."""
        self.until(lambda: bool(self.kernel_done), "completion of the kernel")
        return self.kernel_done.pop(0)

    # -- one message each, checked at both ends -----------------------------------------------------------------

    def soft_writes(self, data: bytes, imm: int | None = None) -> None:
        self.peer.clear(len(data))
        if imm is not None:
            self.peer.post_receive(0)
        self.nic.write(self.qpn, data, self.peer.incoming.buf, self.peer.incoming.rkey, imm)
        assert self.take_soft("sent")["status"] == "success"
        if imm is not None:
            arrived = self.take_kernel()
            assert (arrived.status, arrived.imm, arrived.byte_length) == (0, imm, len(data))
        assert self.peer.received(len(data)) == data

    def soft_sends(self, data: bytes) -> None:
        self.peer.clear(len(data))
        self.peer.post_receive(BUFFER_BYTES)
        self.nic.send(self.qpn, data)
        assert self.take_soft("sent")["status"] == "success"
        arrived = self.take_kernel()
        assert (arrived.status, arrived.byte_length) == (0, len(data))
        assert self.peer.received(len(data)) == data

    def kernel_writes(self, data: bytes, imm: int | None = None) -> None:
        memory = bytearray(len(data) + 2)  # a byte on either side must stay as it was
        rkey = self.nic.register_memory(memory)
        if imm is not None:
            self.nic.post_receive(bytearray(64))
        self.peer.write(data, 1, rkey, imm)
        assert self.take_kernel().status == 0
        if imm is not None:
            arrived = self.take_soft("write_imm")
            assert (arrived["status"], arrived["imm"], arrived["byte_length"]) == ("success", imm, len(data))
        assert memory == b"\0" + data + b"\0"
        self.nic.deregister_memory(rkey)

    def kernel_sends(self, data: bytes) -> None:
        memory = bytearray(len(data) + 1)
        self.nic.post_receive(memory)
        self.peer.send(data)
        assert self.take_kernel().status == 0
        arrived = self.take_soft("send")
        assert (arrived["status"], arrived["byte_length"]) == ("success", len(data))
        assert memory == data + b"\0"

    def carry(self, verb: str, direction: str, data: bytes) -> None:
        """One message by `verb` in `direction`, checked at both ends."""
        soft = direction == "soft to kernel"
        match verb:
            case "WRITE":
                (self.soft_writes if soft else self.kernel_writes)(data)
            case "WRITE_WITH_IMM":
                (self.soft_writes if soft else self.kernel_writes)(data, 0xA1B2C3D4)
            case "SEND":
                (self.soft_sends if soft else self.kernel_sends)(data)
            case _:
                raise ValueError(verb)
