# SPDX-License-Identifier: Apache-2.0
"""Sizes with units. As in nccl-tests, K, M and G are powers of 1,024."""

import re

_UNITS = ("", "K", "M", "G")
_SIZE = re.compile(r"(\d+)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)

LARGEST = 64 * 1024**3


def parse(text: str) -> int:
    """The number of bytes of "8", "64K" or "512 MiB". Raises ValueError with a sentence."""
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) * 1024 ** _UNITS.index(match[2].upper()) if match else 0
    if not 0 < size <= LARGEST:
        raise ValueError(f"{text!r} is not a size from 1 to 64G, such as 8, 64K or 512M")
    return size


def text(size: int) -> str:
    """The shortest exact text: "8 B", "64 KiB"."""
    step = 0
    while step + 1 < len(_UNITS) and size % 1024 == 0 and size:
        size //= 1024
        step += 1
    return f"{size:,} {_UNITS[step]}{'i' if step else ''}B"
