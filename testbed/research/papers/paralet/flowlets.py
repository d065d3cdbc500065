# SPDX-License-Identifier: Apache-2.0
"""Section 5.2 with real packets: the size S of flowlets where uplinks lose packets and where paths differ.

The specs are `experiments/flowlets/*.yaml`: eight lanes between hosts of two leaves, four spines, 10 Mbit/s, two
messages of 512 KiB from each host. After their runs on the emulated fabric with `--results REAL`, and on the packet
simulation with `--fabric packet --results MODEL`, this command writes `flowlets.csv` again:

    python -m testbed.research.papers.paralet.flowlets REAL MODEL

It also prints how long the flowlets of policy `by-rule` were.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from netmodel.printable import printable_lines
from testbed.research.papers.claim import Claim
from testbed.research.papers.paralet.real_runs import FABRICS, Times, collected, file_of, read

FILE = file_of("flowlets.csv")
CONDITIONS: Mapping[str, str] = {
    "flowlets_even": "all uplinks alike",
    "flowlets_rare_loss": "0.1 % of packets lost",
    "flowlets_loss": "1 % of packets lost",
    "flowlets_slight_skew": "one spine of four at 50 %",
    "flowlets_skew": "one spine of four at 25 %",
}
"""Names of the specs, and what they are about."""
SIZES: Mapping[str, str] = {
    "by-rule": "4 BDP / m",
    "4-KiB": "4 KiB",
    "16-KiB": "16 KiB",
    "64-KiB": "64 KiB",
    "512-KiB": "512 KiB",
}
"""Policies of the specs, and the size of their flowlets. 512 KiB is a whole message."""
_FEW = (
    "Suggested from experience, which counts as a ratio of 1. Real packets, 10 Mbit/s, 8 lanes. S is one packet, as in "
    "the best column, 4 KiB: two measurements of one size."
)
_LARGER = '"A larger S may loss flexibility". Real packets, a whole message of 512 KiB in one flowlet.'


def measured() -> Times:
    """The times of `flowlets.csv`."""
    return read(FILE)


def claims(times: Times) -> Iterator[Claim]:
    """What the times of real packets say about 5.2, by the means of the page's table."""
    for name, about in CONDITIONS.items():
        mean = {policy: fmean(times["real packets", name, policy]) for policy in SIZES}
        rule, what = mean["by-rule"], f"completion with real packets, {about}"
        series = "completion with real packets, S = 4 BDP / m over the best S"
        best = rule / min(mean.values())
        yield Claim("5.2", f"{what}: S = 4 BDP / m over the best S", "x", best, 1.0, 2, note=_FEW, series=series)
        series, larger = "completion with real packets, largest S over 4 BDP / m", mean["512-KiB"] / rule
        yield Claim("5.2", f"{what}: S = 512 KiB over 4 BDP / m", "x", larger, 1.0, 2, "more than", _LARGER, series)


def table(times: Times) -> str:
    """The means as a Markdown table: real packets, and the model in brackets."""
    lines = [f"| | {' | '.join(SIZES.values())} |", f"|{'---|' * (1 + len(SIZES))}"]
    for name, about in CONDITIONS.items():
        real, model = ([f"{fmean(times[fabric, name, policy]):.2f}" for policy in SIZES] for fabric in FABRICS)
        lines.append(f"| {about} | {' | '.join(f'{a} ({b})' for a, b in zip(real, model, strict=True))} |")
    return "\n".join(lines)


def chosen(folder: Path) -> str:
    """How long the flowlets by rule are in these results, on average: the shortest and the longest of a host."""
    lines = []
    for name in CONDITIONS:
        results = folder / name
        sent = json.loads((results / "summary.json").read_text("utf-8"))["spec"]["workload"]["bytes"]
        count: Counter[tuple[str, str]] = Counter()
        for lane in csv.DictReader((results / "lanes.csv").read_text("utf-8").splitlines()):
            if lane["policy"] == "by-rule":
                count[lane["seed"], lane["rank"]] += int(lane["flowlets"])
        lines.append(f"{name}: {sent / max(count.values()):,.0f} to {sent / min(count.values()):,.0f} B")
    return "\n".join(lines)


if __name__ == "__main__":
    found = dict(zip(FABRICS, map(Path, sys.argv[1:]), strict=True))
    Path(str(FILE)).write_text(collected(found, CONDITIONS), "utf-8")
    print(printable_lines(table(measured())))
    for fabric, folder in found.items():
        print(printable_lines(f"{fabric}, S by the rule:\n{chosen(folder)}"))
