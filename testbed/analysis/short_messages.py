# SPDX-License-Identifier: Apache-2.0
"""Whether messages are so short that the bursts of shaped ports decide their ideal time. Pure."""

from testbed.spec import Experiment, Instance


def short_sentence(experiment: Experiment, ideal_s: float) -> str | None:
    """What to tell a user where bursts take more than half of the ideal time of all bytes; None otherwise.

    `ideal_s`: the shortest ideal of the seeds, in seconds.
    """
    if experiment.spec.fabric_kind.modelled:  # its ports send no bursts, and its schedules may be long
        return None
    whole_s = min(Instance(experiment, seed, bursts=False).ideal_s() for seed in experiment.seeds)
    if ideal_s >= whole_s / 2:
        return None
    return (
        f"The messages are short: all bytes take {1e3 * whole_s:.3g} ms at the rates. The ideal leaves out what ports "
        f"send at once; {1e3 * ideal_s:.3g} ms remain. Times relative to the ideal say little; send more bytes."
    )
