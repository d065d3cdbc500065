# SPDX-License-Identifier: Apache-2.0
"""Failover plans: the plan after every single failure, computed before it happens.

Pure: no clock, no thread, no socket. Its caller calls `Precomputed.step` whenever it has time.
"""

from sdn.failover.failures import Failure, failures, plan_after, repaired
from sdn.failover.precomputed import Precomputed

__all__ = ["Failure", "Precomputed", "failures", "plan_after", "repaired"]
