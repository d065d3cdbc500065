# SPDX-License-Identifier: Apache-2.0
"""Section 5.3 with real packets: m lanes of a host for all its peers, beside m lanes for each peer.

The specs are `experiments/host_lanes/*.yaml`: eight lanes, eight hosts on two leaves, four spines, 10 Mbit/s. After
their runs on the emulated fabric with `--results REAL`, and on the packet simulation with `--fabric packet --results
MODEL`, this command writes `host_lanes.csv` again:

    python -m testbed.research.papers.paralet.host_lanes REAL MODEL
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from netmodel.printable import printable_lines
from testbed.research.papers.claim import Claim
from testbed.research.papers.paralet.real_runs import FABRICS, Times, collected, file_of, read

FILE = file_of("host_lanes.csv")
CONDITIONS: Mapping[str, str] = {
    "host_lanes_ring": "one peer (ring)",
    "host_lanes_tree": "up to six peers (DBT)",
    "host_lanes_alltoall": "seven peers (all-to-all)",
    "host_lanes_long_alltoall": "seven peers, four times as much",
    "host_lanes_slow_spine": "seven peers, one spine of four at 25 %",
}
"""Names of the specs, and what they are about."""
PEER, HOST = "per-peer", "per-host"
"""Policies of the specs."""

_WORDS = (
    '"Can naturally adapt for any number of concurrent active connections" counts as a ratio of 1. Real packets, '
    "10 Mbit/s, 8 lanes."
)


def measured() -> Times:
    """The times of `host_lanes.csv`."""
    return read(FILE)


def ratio(times: Times, fabric: str, name: str) -> float:
    """How many times as long all takes with lanes of a host, by the means over seeds."""
    return fmean(times[fabric, name, HOST]) / fmean(times[fabric, name, PEER])


def claims(times: Times) -> Iterator[Claim]:
    """What the times of real packets say about 5.3."""
    series = "completion with real packets, m lanes per host over m per peer"
    for name, about in CONDITIONS.items():
        what = f"completion with real packets, {about}: 8 lanes per host over 8 per peer"
        yield Claim("5.3", what, "x", ratio(times, FABRICS[0], name), 1.0, 2, note=_WORDS, series=series)


def table(times: Times) -> str:
    """The means as a Markdown table: real packets, and the model in brackets."""
    lines = ["| each host sends to | 8 lanes for each peer | 8 lanes of a host | ratio |", "|---|---|---|---|"]
    for name, about in CONDITIONS.items():
        peer, host = ([fmean(times[fabric, name, policy]) for fabric in FABRICS] for policy in (PEER, HOST))
        ratios = [ratio(times, fabric, name) for fabric in FABRICS]
        cells = (f"{real:.2f} ({model:.2f})" for real, model in (peer, host, ratios))
        lines.append(f"| {about} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    found = dict(zip(FABRICS, map(Path, sys.argv[1:]), strict=True))
    Path(str(FILE)).write_text(collected(found, CONDITIONS), "utf-8")
    print(printable_lines(table(measured())))
