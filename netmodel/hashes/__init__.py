# SPDX-License-Identifier: Apache-2.0
"""ECMP hashes: how a switch chooses one of several equal ports for a flow. One module per kind of switch.

`OvsHash` and `LinuxL4Hash` are bit-exact with the forwarding planes that they are named after, and so is `LinuxCrcHash`
with routers of Linux that a program gives a CRC. `CrcHash` and `XorHash` are the hash families of switch ASICs
(SAI_HASH_ALGORITHM_*). They are models, because an ASIC's step from hash value to member is not public.
"""

from netmodel.hashes.base import AffineHash, EcmpHash
from netmodel.hashes.crc import CrcHash
from netmodel.hashes.linux_crc import LinuxCrcHash
from netmodel.hashes.linux_l4 import LinuxL4Hash
from netmodel.hashes.ovs import OvsHash
from netmodel.hashes.xor import XorHash

__all__ = ["AffineHash", "CrcHash", "EcmpHash", "LinuxCrcHash", "LinuxL4Hash", "OvsHash", "XorHash"]
