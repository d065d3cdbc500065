# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a trace, and their numbers."""

from pathlib import Path

LARGEST_FILE = 256 << 20
"""Bytes of the largest file that is read."""
MOST_TASKS = 2_000_000
"""Tasks of the largest graph that is made of a trace: a few gigabytes of memory."""
MOST_ENTRIES = 12 * MOST_TASKS
"""Kinds, times, sizes, devices and waits of all tasks of that graph."""
LONGEST_S = 1e9
"""Longest time of a task, in seconds."""


def bytes_of(path: Path) -> bytes:
    """The contents of a file. Raises ValueError if it cannot be read or is too large."""
    try:
        with path.open("rb") as source:
            content = source.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE:
        raise ValueError(f"{path}: is larger than {LARGEST_FILE >> 20} MiB")
    return content


def text_of(path: Path) -> str:
    """The text of a file. Raises ValueError as `bytes_of`, and if it is not UTF-8."""
    try:
        return bytes_of(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start}: is not UTF-8 text") from None


def files_in(path: Path, pattern: str) -> list[Path]:
    """The file at `path`, or those of the folder at `path` whose names fit `pattern`, in the order of their names.

    Raises ValueError if there are none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(entry for entry in path.glob(pattern) if entry.is_file())
    if not found:
        raise ValueError(f"{path}: has no files {pattern}")
    return found


def whole(text: str, what: str, where: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole decimal number. Raises ValueError, which says `what` it is and `where`, if it is not in range."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19:
        raise ValueError(f"{where}: {what} must be a whole number, not {text[:40]!r}")
    if not least <= (value := int(text)) <= most:
        raise ValueError(f"{where}: {what} must be {least} to {most}, not {value}")
    return value
