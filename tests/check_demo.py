#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the summary of a demo run against the documented claims: ``check_demo.py results/latest/summary.json``.

Times are compared only with the ideal and with each other, so that the speed of the machine does not matter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any


def faults(summary: dict[str, Any]) -> list[str]:
    """The claims that do not hold, one sentence each."""
    policies = {policy["name"]: policy for policy in summary["policies"]}
    lanes = {policy["m"]: policy for name, policy in policies.items() if name.startswith("paralet")}
    if missing := {"ecmp", "pinned"} - policies.keys() | {f"paralet with m = {m}" for m in {4, 8, 32} - lanes.keys()}:
        return [f"the run lacks {', '.join(sorted(missing))}"]

    ideal, ecmp, pinned = summary["ideal_s"], policies["ecmp"]["mean_s"], policies["pinned"]["mean_s"]
    gap = ecmp - pinned
    predictions = summary["predictions"]
    claims = [
        ("every policy ran with 5 or more seeds", all(len(p["completions_s"]) >= 5 for p in policies.values())),
        ("every byte was verified", all(p["verified"] for p in policies.values())),
        ("nothing beats the ideal", min(min(p["completions_s"]) for p in policies.values()) > ideal),
        # The median, because other work on the machine can only lengthen runs, and does not lengthen all of them.
        ("pinned is within 10 % of the ideal by median", median(policies["pinned"]["completions_s"]) <= 1.10 * ideal),
        ("pinned is within 25 % of the ideal by mean", pinned <= 1.25 * ideal),
        ("pinned beats ecmp by 20 % or more", ecmp >= 1.2 * pinned),
        ("paralet with m = 8 closes at least a quarter of the gap", lanes[8]["mean_s"] <= ecmp - 0.25 * gap),
        ("paralet with m = 8 does not pass pinned", lanes[8]["mean_s"] >= 0.98 * pinned),
        ("the worst of paralet with m = 8 beats the worst of ecmp", lanes[8]["worst_s"] < policies["ecmp"]["worst_s"]),
        ("every prediction came true", 0 < predictions["checked"] == predictions["matched"]),
    ]
    return [f"claim does not hold: {claim}" for claim, holds in claims if not holds]


def main(path: str) -> int:
    summary = json.loads(Path(path).read_text())
    print(f"ideal {summary['ideal_s']:.2f} s")
    for policy in summary["policies"]:
        mean, worst = policy["mean_s"], policy["worst_s"]
        print(
            f"{policy['name']:>12}  mean {mean:6.2f} s ({mean / summary['ideal_s']:.2f} of ideal)  worst {worst:6.2f} s"
        )
    found = faults(summary)
    print("\n".join(found) or "all claims hold")
    return bool(found)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: check_demo.py SUMMARY.json")
    sys.exit(main(sys.argv[1]))
