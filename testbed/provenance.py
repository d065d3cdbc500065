# SPDX-License-Identifier: Apache-2.0
"""Where results come from: version and commit of paralet, the command, the date and the machine."""

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from testbed.machine import this_machine

_GIT_S = 5.0
"""Seconds that git may take."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What produced a result folder; unknown values are "unknown"."""

    version: str
    commit: str
    """Of the checkout that ran, or from which the installed package was built; with "-dirty" where files differed."""
    date: str
    """When the command began, RFC 3339, UTC."""
    command: str
    """As typed, quoted for a shell."""
    processor: str
    cores: int
    """Cores that the command could use."""
    kernel: str
    load: float
    """Processes that ran or waited to run, averaged over the minute before the command began."""


def provenance(argv: Sequence[str]) -> Provenance:
    """The provenance of what the command `argv` writes from now on."""
    machine = this_machine()
    return Provenance(
        version=installed_version(),
        commit=commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join([Path(argv[0]).name, *argv[1:]]),
        processor=machine.processor,
        cores=machine.cores,
        kernel=machine.kernel,
        load=os.getloadavg()[0],
    )


def installed_version() -> str:
    """The version of paralet; "unknown" in a checkout that is not installed."""
    try:
        return version("paralet")
    except PackageNotFoundError:
        return "unknown"


def commit() -> str:
    """The first 12 digits of the commit of this paralet, with "-dirty" where files differ from it.

    An installed package has that of the sources from which it was built. "unknown" without Git.
    """
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        from_setup = Path(__file__).with_name("commit")
        if from_setup.exists():
            return from_setup.read_text()
        from hostlib import build_commit  # the native engine takes a while to load

        return build_commit()
    # The checkout may belong to another user: experiments run as root.
    git = ["git", "-c", f"safe.directory={root}", "-C", str(root)]
    try:
        described = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return described.stdout.strip() or "unknown"
