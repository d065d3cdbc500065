# SPDX-License-Identifier: Apache-2.0
"""Whether messages are so short that the bursts of shaped ports decide their ideal time. Pure."""

from testbed.spec import Experiment, Instance


def short_sentence(experiment: Experiment, ideal_s: float) -> str | None:
    """What to tell a user whose ports send a burst that is longer than what is left for their rate; None otherwise."""
    burst_s = Instance(experiment, experiment.seeds[0]).burst_s
    if ideal_s >= burst_s:
        return None
    return (
        f"The messages are short: a port sends at once what takes {1e3 * burst_s:.3g} ms at its rate, which the ideal "
        f"leaves out. Times relative to the ideal say little; send more bytes."
    )
