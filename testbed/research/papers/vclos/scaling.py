# SPDX-License-Identifier: Apache-2.0
"""Figure 5: scaling factors of data-parallel training on the testbed of 32 GPUs, with ECMP and without contention.

The scaling factor of n GPUs is the throughput of all over n times that of one (Equation 1). The figure's numbers are
not in our copy of the paper, and neither hash nor bandwidths but 100 Gbit/s are printed. Ours follow from the shares of
an iteration that communicate and nothing hides, by which the paper's simulator takes jobs (section 9.1), and from a
hash of ours. So there is one bandwidth: what is hidden at another one is not published.

A server has four GPUs with a NIC each, and a leaf two servers, hence eight uplinks (section 8.1). Four rings, one for
each NIC, carry a quarter of each gradient. A ring is as fast as its slowest hop, so the all-reduce takes k times as
long where k of its flows share an uplink.
"""

from collections.abc import Mapping
from functools import cache
from statistics import fmean

import numpy as np

from netmodel import ENTROPY_PORTS, ROCE_PORT, FlowFields
from netmodel.flow import IPPROTO_UDP
from testbed.research.papers.vclos.hash_modes import MODES

SHARES: Mapping[str, float] = {"VGG16": 0.10, "ResNet50/101": 0.02, "BERT": 0.12}
"""With the batches of the figure: 32, and 4 for BERT (`simulated.testbed_jobs`)."""
GPUS = (4, 8, 16, 32)
_SERVER, _LEAF, _UPLINKS = 4, 8, 8
_DRAWS = 1_000
_SEED = 1 << 40 | 5
"""Any number gives these counts: a seed changes all CRCs by one XOR, which only renames the eight uplinks."""


@cache
def shared(gpus: int) -> tuple[int, ...]:
    """The most flows on an uplink, for each of many draws of source ports, by CRC-32 of the 5-tuple.

    The last server of each leaf sends four flows to the first one of the next leaf. They come down from the spines that
    they went up to, so downlinks have as many.
    """
    leaves = gpus // _LEAF
    if leaves < 2:
        return (1,)
    random = np.random.default_rng(1)
    leaf, nic = (np.tile(each.ravel(), _DRAWS) for each in np.indices((leaves, _SERVER)))
    first = (10 << 24) + 1 + nic
    fields = FlowFields(
        src=(first + (leaf << 8) + _SERVER).astype(np.uint32),
        dst=(first + ((leaf + 1) % leaves << 8)).astype(np.uint32),
        sport=random.integers(ENTROPY_PORTS.start, ENTROPY_PORTS.stop, leaf.size).astype(np.uint16),
        dport=np.array([ROCE_PORT], dtype=np.uint16),
        proto=np.array([IPPROTO_UDP], dtype=np.uint8),
    )
    taken = MODES["CRC-32"].select(fields, _SEED, _UPLINKS).reshape(_DRAWS, leaves, _SERVER)
    counts = (taken[..., None] == np.arange(_UPLINKS)).sum(axis=2)
    return tuple(counts.max(axis=(1, 2)).tolist())


def factor(share: float, gpus: int, *, ecmp: bool) -> float:
    """The scaling factor of a model that communicates for this share of an iteration without contention.

    With ECMP the mean over all draws. A server's own GPUs communicate over NVLink, which is taken to cost nothing.
    """
    if gpus <= _SERVER:
        return 1.0
    return fmean((1 - share) / (1 - share + flows * share) for flows in (shared(gpus) if ecmp else (1,)))
