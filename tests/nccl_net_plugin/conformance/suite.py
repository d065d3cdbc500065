# SPDX-License-Identifier: Apache-2.0
"""Builds the conformance suite, lists its rules and runs them."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
VERSIONS = range(8, 13)
LOOPBACK = {"PARALET_IFNAME": "lo"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of NCCL's contract."""

    name: str
    versions: range
    places: tuple[str, ...]
    """Where its ends can run: alone, one-process, two-processes, two-hosts."""
    on_request: bool
    """Waits for input from outside, so "all" does not include it."""


def rules_in_sources() -> list[Rule]:
    """Parse the rules from the C sources, because test ids are needed before the program is built.

    A test compares them with the list that the program prints.
    """
    places = {
        "TWO_PROCESSES": ("two-processes",),
        "TWO_PROCESSES_OR_HOSTS": ("two-processes", "two-hosts"),
        None: ("one-process", "two-processes", "two-hosts"),
    }
    rules = []
    for source in sorted(SOURCES.glob("*.c")):
        for entry in re.split(r"\{(?=\.name = )", source.read_text())[1:]:
            values = dict(re.findall(r"\.(\w+) = \"?([\w-]+)", entry))
            rules.append(
                Rule(
                    values["name"],
                    range(int(values.get("since", VERSIONS[0])), int(values.get("until", VERSIONS[-1])) + 1),
                    ("alone",) if "alone" in values else places[values.get("places")],
                    "on_request" in values,
                )
            )
    return rules


RULES = [rule for rule in rules_in_sources() if not rule.on_request]


@dataclass(frozen=True, slots=True)
class Suite:
    """A built suite."""

    program: Path
    faulty_plugin: Path

    def rules(self) -> list[Rule]:
        """Rules that the program lists."""
        listed = subprocess.run([self.program, "--list"], check=True, capture_output=True, text=True).stdout
        rules = []
        for line in listed.splitlines():
            name, versions, places, _ = line.split("\t")
            first, last = map(int, versions.split("-"))
            where = tuple(place for place in places.split(",") if place != "on-request")
            rules.append(Rule(name, range(first, last + 1), where, "on-request" in places))
        return rules

    def run(
        self, plugin: Path, version: int, rule: str, *options: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a rule, or "all", in every place on one machine."""
        return subprocess.run(
            [self.program, *options, plugin, str(version), rule],
            env={**os.environ, **LOOPBACK, **environment},
            capture_output=True,
            text=True,
            check=False,
        )


def build(directory: Path) -> Suite:
    """Build the suite in `directory`, which takes a few seconds if it is not there yet."""
    for argv in (
        ["cmake", "-S", SOURCES, "-B", directory, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"],
        ["cmake", "--build", directory],
    ):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return Suite(directory / "net-conformance", directory / "libnccl-net-faulty.so")
