# SPDX-License-Identifier: Apache-2.0
"""The lock of Python packages, requirements.lock: what it is made from, whether it is current, and a bill of materials.

usage: python scripts/locked.py requirements    what pyproject.toml asks for, one requirement a line
       python scripts/locked.py digest          of those lines; scripts/lock.sh writes it into the lock
       python scripts/locked.py check           exit status 1 if the lock was made from others, or lacks a hash
"""

import hashlib
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXTRA = "dev"
"""The extra that is locked beside what paralet needs to run and to be built."""

_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_OWN = re.compile(r"paralet\[(?P<extras>[^\]]+)\]")


@dataclass(frozen=True, slots=True)
class Pin:
    """A package of the lock. Hashes are those of all its files, for any machine."""

    name: str
    version: str
    sha256: tuple[str, ...]


def requirements(project: Mapping[str, Any]) -> list[str]:
    """What a checkout needs: to build, to run, and for the extra `dev` with the extras that it names."""
    extras = project["project"]["optional-dependencies"]

    def of_extra(name: str) -> Iterator[str]:
        for requirement in extras[name]:
            own = _OWN.fullmatch(requirement)
            if own is None:
                yield requirement
            else:
                for other in own["extras"].split(","):
                    yield from of_extra(other.strip())

    return sorted({*project["build-system"]["requires"], *project["project"]["dependencies"], *of_extra(EXTRA)})


def digest(wanted: list[str]) -> str:
    """A number for a list of requirements."""
    return hashlib.sha256("\n".join(wanted).encode()).hexdigest()


def pins(lock: str) -> list[Pin]:
    """The packages of a lock file."""
    found = []
    for entry in re.split(r"\n(?=[A-Za-z0-9])", lock):
        pin = _PIN.match(entry)
        if pin is not None:
            found.append(Pin(pin["name"], pin["version"], tuple(_HASH.findall(entry))))
    return found


def faults(project: Mapping[str, Any], lock: str) -> list[str]:
    """What is wrong with a lock file, a sentence each."""
    remedy = "run scripts/lock.sh"
    found = []
    if f"# requirements: {digest(requirements(project))}\n" not in lock:
        found.append(f"requirements.lock was made from other requirements than those of pyproject.toml: {remedy}")
    locked = pins(lock)
    found += [f"requirements.lock has no hash of {pin.name}: {remedy}" for pin in locked if not pin.sha256]
    names = {re.sub(r"[-_.]+", "-", pin.name).lower() for pin in locked}
    for requirement in requirements(project):
        name = re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()  # type: ignore[index]
        if name not in names:
            found.append(f"requirements.lock has no {name}: {remedy}")
    return found


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    match arguments:
        case ["requirements"]:
            print("\n".join(requirements(project)))
        case ["digest"]:
            print(digest(requirements(project)))
        case ["check"]:
            found = faults(project, (ROOT / "requirements.lock").read_text())
            print("\n".join(found) or "requirements.lock is current")
            return 1 if found else 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
