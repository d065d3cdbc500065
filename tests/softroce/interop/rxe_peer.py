# SPDX-License-Identifier: Apache-2.0
"""A verbs program in Python: one RC queue pair on a kernel device, by pyverbs and independent of this project."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_MTU_256,
    IBV_MTU_512,
    IBV_MTU_1024,
    IBV_MTU_2048,
    IBV_MTU_4096,
    IBV_QPT_RC,
    IBV_SEND_SIGNALED,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

MTUS = {256: IBV_MTU_256, 512: IBV_MTU_512, 1024: IBV_MTU_1024, 2048: IBV_MTU_2048, 4096: IBV_MTU_4096}
BUFFER_BYTES = 4 << 20
_DEPTH = 64
_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ


def gid_index(context: Context, address: str) -> int:
    """The index of the IPv4-mapped GID of `address`."""
    mapped = bytes(10) + b"\xff\xff" + IPv4Address(address).packed
    for index in range(context.query_port(1).gid_tbl_len):
        try:
            gid = str(context.query_gid(1, index))
        except Exception:  # pyverbs raises its own for an empty entry
            continue
        if bytes.fromhex(gid.replace(":", "")) == mapped:
            return index
    raise LookupError(f"no GID ::ffff:{address}")


@dataclass(frozen=True, slots=True)
class Done:
    """A work completion."""

    wr_id: int
    status: int
    opcode: int
    byte_length: int
    imm: int


class RxePeer:
    """One queue pair, one registered buffer of BUFFER_BYTES to send from and one to receive into."""

    def __init__(self, device: str, address: str) -> None:
        self.address = address
        self.context = Context(name=device)
        self.gid_index = gid_index(self.context, address)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * _DEPTH)
        self.outgoing = MR(self.pd, BUFFER_BYTES, _ACCESS)
        self.incoming = MR(self.pd, BUFFER_BYTES, _ACCESS)
        capacity = QPCap(max_send_wr=_DEPTH, max_recv_wr=_DEPTH, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacity), QPAttr())

    @property
    def qpn(self) -> int:
        return int(self.qp.qp_num)

    def connect(
        self, address: str, *, remote_qpn: int, remote_psn: int, psn: int, path_mtu: int, flow_label: int = 0
    ) -> None:
        """To RTS. RNR is retried for ever; the timeout is long, for an emulated machine is slow."""
        init = QPAttr(port_num=1)
        init.qp_access_flags = _ACCESS
        self.qp.to_init(init)
        route = GlobalRoute(
            dgid=_gid(address), sgid_index=self.gid_index, hop_limit=64, flow_label=flow_label, traffic_class=0
        )
        attributes = QPAttr(port_num=1)
        attributes.path_mtu = MTUS[path_mtu]
        attributes.dest_qp_num = remote_qpn
        attributes.rq_psn = remote_psn
        attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = 12
        attributes.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        self.qp.to_rtr(attributes)
        attributes.timeout = 17  # 4.096 us * 2^17 = 0.54 s
        attributes.retry_cnt = (
            7  # to rxe this means for ever; it counts NAKs too, and only a plain ACK resets the count
        )
        attributes.rnr_retry = 7
        attributes.sq_psn = psn
        attributes.max_rd_atomic = 1
        self.qp.to_rts(attributes)

    # -- posting ------------------------------------------------------------------------------------------------

    def write(self, data: bytes, address: int, rkey: int, imm: int | None = None) -> None:
        """RDMA WRITE of `data`, with immediate when given."""
        opcode = IBV_WR_RDMA_WRITE if imm is None else IBV_WR_RDMA_WRITE_WITH_IMM
        request = self._request(opcode, data)
        request.set_wr_rdma(rkey, address)
        if imm is not None:
            request.imm_data = socket.htonl(imm)
        self.qp.post_send(request)

    def read(self, length: int, address: int, rkey: int) -> None:
        """RDMA READ."""
        sge = SGE(self.incoming.buf, length, self.incoming.lkey)
        request = SendWR(wr_id=1, opcode=IBV_WR_RDMA_READ, num_sge=1, sg=[sge], send_flags=IBV_SEND_SIGNALED)
        request.set_wr_rdma(rkey, address)
        self.qp.post_send(request)

    def send(self, data: bytes) -> None:
        """SEND of `data`."""
        self.qp.post_send(self._request(IBV_WR_SEND, data))

    def post_receive(self, length: int = BUFFER_BYTES) -> None:
        """A receive into the incoming buffer."""
        self.qp.post_recv(RecvWR(wr_id=2, num_sge=1, sg=[SGE(self.incoming.buf, length, self.incoming.lkey)]))

    def _request(self, opcode: int, data: bytes) -> SendWR:
        if data:
            self.outgoing.write(data, len(data))
        sge = SGE(self.outgoing.buf, len(data), self.outgoing.lkey)
        return SendWR(wr_id=1, opcode=opcode, num_sge=1, sg=[sge], send_flags=IBV_SEND_SIGNALED)

    # -- what came of it ----------------------------------------------------------------------------------------

    def poll(self) -> list[Done]:
        """Completions, perhaps none."""
        _, completions = self.cq.poll(num_entries=16)
        return [_done(each) for each in completions]

    def received(self, length: int) -> bytes:
        """The first bytes of the incoming buffer."""
        return bytes(self.incoming.read(length, 0)) if length else b""

    def clear(self, length: int) -> None:
        """Zeros into the incoming buffer."""
        if length:
            self.incoming.write(bytes(length), length)

    def close(self) -> None:
        for each in (self.qp, self.outgoing, self.incoming, self.cq, self.pd, self.context):
            each.close()

    def __enter__(self) -> RxePeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _gid(address: str) -> GID:
    octets = IPv4Address(address).packed.hex()
    return GID(f"0000:0000:0000:0000:0000:ffff:{octets[:4]}:{octets[4:]}")


def _done(completion: Any) -> Done:
    with_imm = completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM
    length = completion.byte_len if completion.opcode & IBV_WC_RECV else 0
    imm = socket.ntohl(completion.imm_data) if with_imm else 0
    return Done(completion.wr_id, completion.status, completion.opcode, length, imm)
