# SPDX-License-Identifier: Apache-2.0
"""What the controller can know before it happens: the next phase of a job, when elephants end, and every failure.

Pure: no clock, no thread, no socket. Times come in with the events, and whoever has time to spare calls
`Precomputed.step`. docs/controller.md tells how the path service uses this.
"""

from sdn.foresight.ends import ends_s
from sdn.foresight.failures import Failure, failures, plan_after
from sdn.foresight.forecast import Announced, Expected, Forecast, HitRate, phases
from sdn.foresight.precomputed import Precomputed

__all__ = [
    "Announced",
    "Expected",
    "Failure",
    "Forecast",
    "HitRate",
    "Precomputed",
    "ends_s",
    "failures",
    "phases",
    "plan_after",
]
