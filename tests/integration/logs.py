# SPDX-License-Identifier: Apache-2.0
"""The ends of the logs that a failed test leaves: after continuous integration nobody can read the files."""

from __future__ import annotations

import os
from pathlib import Path

LINES = 20
FILES = 20


def ends(folder: Path, since_s: float) -> list[tuple[str, str]]:
    """Name and last lines of each log below `folder` to which something was written since `since_s`, a time.time().

    At most FILES logs: those that were written last.
    """
    # os.walk does not follow the links that name the latest results.
    files = [Path(below, name) for below, _, names in os.walk(folder) for name in names if name.endswith(".log")]
    written = {file: stat.st_mtime for file in files if (stat := file.stat()).st_size and stat.st_mtime >= since_s}
    last = sorted(written, key=lambda file: written[file])[-FILES:]
    return [(str(file.relative_to(folder)), end(file)) for file in last]


def end(file: Path) -> str:
    """The last lines of a file."""
    return "\n".join(file.read_text(errors="replace").splitlines()[-LINES:])
