# SPDX-License-Identifier: Apache-2.0
"""Completion times of specs with real packets and in the packet simulation, in a CSV file of this package.

Real packets are not sent again whenever the page is made, so their times are kept.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

FABRICS = ("real packets", "model")

Times = Mapping[tuple[str, str, str], Sequence[float]]
"""Completion times as multiples of the ideal, one for each seed, by fabric, spec and policy."""


def file_of(name: str) -> Traversable:
    """The file of this name in the package."""
    return files("testbed.research.papers.paralet") / name


def read(file: Traversable) -> Times:
    """The times of such a file."""
    rows = list(csv.reader(file.read_text("utf-8").splitlines()))[1:]
    return {(fabric, name, policy): [float(time) for time in times] for fabric, name, policy, *times in rows}


def collected(folders: Mapping[str, Path], names: Iterable[str]) -> str:
    """The file that `read` reads, of specs with these `names`, made of the folders with results of each of `FABRICS`.

    A results folder has a folder for each spec.
    """
    lines = ["fabric,spec,policy,completion / ideal by seed"]
    for fabric, folder in folders.items():
        for name in names:
            summary = json.loads((folder / name / "summary.json").read_text("utf-8"))
            for policy in summary["policies"]:
                ratios = (f"{seconds / summary['ideal_s']:.3f}" for seconds in policy["completions_s"])
                lines.append(",".join([fabric, name, policy["name"], *ratios]))
    return "\n".join(lines) + "\n"
