# SPDX-License-Identifier: Apache-2.0
"""Equal keys in arrays: their positions, and the rank of each among its equals."""

from typing import Any

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


def groups(keys: npt.NDArray[np.integer[Any]]) -> list[Index]:
    """The positions of each distinct key, the keys ascending, positions ascending within each."""
    if not keys.size:
        return []
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)


def occurrences(keys: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """For each key, the number of equal keys before it."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order][:1] - 1))
    before = np.empty(keys.size, dtype=np.int64)
    before[order] = np.arange(keys.size) - np.repeat(starts, np.diff(starts, append=keys.size))
    return before
