# SPDX-License-Identifier: Apache-2.0
"""Number and size of flowlets: equation 1 and section 5.2 of the ParaLet paper."""

from math import inf

from hostlib import _engine

MAX_BDP_BYTES = 2**60


def slowdown(m: int, hosts: float) -> float:
    """Expected slowdown of the slowest of ``hosts`` senders with ``m`` parallel flowlets each (equation 1).

    ``1 + Phi^-1(1 - 1/hosts) / sqrt(m)``. The value is too small for small m, where the normal distribution
    approximates the binomial one badly. Raises ValueError when m or hosts is below 1 or not finite.
    """
    if not (m >= 1 and 1 <= hosts < inf):
        raise ValueError(f"m and hosts must be at least 1 and finite, not {m} and {hosts}")
    return _engine.slowdown(m, hosts)


def lanes_for(slowdown: float, hosts: float) -> int:
    """The smallest m whose slowdown by equation 1 is at most ``slowdown`` (> 1) among ``hosts`` hosts.

    Section 5.2 prints 25 for a slowdown of 2 among 10^5 hosts; the formula gives 19. Raises ValueError when the
    slowdown is not above 1, or hosts is below 1 or not finite.
    """
    if not (slowdown > 1 and 1 <= hosts < inf):
        raise ValueError(f"the slowdown must be above 1 and hosts at least 1 and finite, not {slowdown} and {hosts}")
    return _engine.lanes_for(slowdown, hosts)


def flowlet_bytes(bdp_bytes: float, m: int, path_mtu: int = 4096) -> int:
    """Flowlet size S = 4 BDP / m in bytes (section 5.2), rounded up to whole packets of ``path_mtu`` bytes.

    ``bdp_bytes`` is the bandwidth-delay product of the path. Raises ValueError when an argument is out of range.
    """
    if not (0 <= bdp_bytes <= MAX_BDP_BYTES and m >= 1 and path_mtu >= 1):
        raise ValueError("bdp_bytes must be 0 to 2^60, m and path_mtu must be at least 1")
    return _engine.flowlet_bytes(bdp_bytes, m, path_mtu)
