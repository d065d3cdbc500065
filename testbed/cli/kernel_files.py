# SPDX-License-Identifier: Apache-2.0
"""Files of /sys and /proc, which may be missing or unreadable."""

from pathlib import Path


def entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def text(file: Path) -> str:
    """A file's content without the final newline; "" when it cannot be read, which is so for an unused GID."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
