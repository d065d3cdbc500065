# SPDX-License-Identifier: Apache-2.0
"""Counters of lanes and devices, added up by NIC, peer or lane. Pure: surveys in, sums out.

A lane's counters vanish with its peer, and a device's with its process. What they had counted stays in the sums of
their NIC, so that these never decrease while a process uses it.
"""

from collections.abc import Hashable, Iterator
from typing import Literal, NamedTuple, TypeAlias

from hostlib.stats import COUNTERS, DeviceSnapshot, Survey

Detail = Literal["device", "peer", "lane"]
DETAILS: tuple[Detail, ...] = ("device", "peer", "lane")
Labels: TypeAlias = tuple[str, ...]
"""User id and address of a NIC; then, by detail, the peer's address and the lane's number."""


class Key(NamedTuple):
    """What a sum is of: a group of `COUNTERS`, to which detail, and the labels."""

    group: str
    detail: Detail
    labels: Labels


class _Source(NamedTuple):
    """Counters of one lane or device at a moment, and the sums that they belong to."""

    keys: tuple[Key, ...]
    values: tuple[int, ...]
    """In the order of the group's `COUNTERS`."""


class Totals:
    """Sums of counters from successive surveys, with lanes added up to these details."""

    def __init__(self, detail: Detail = "device") -> None:
        self.sums: dict[Key, tuple[int, ...]] = {}
        """In the order of the group's `COUNTERS`."""
        self._details = DETAILS[: DETAILS.index(detail) + 1]
        self._seen: dict[Hashable, tuple[int, ...]] = {}

    def take(self, survey: Survey) -> None:
        """Add what was counted since the survey before. Sums to which nothing belongs any more are left out."""
        seen: dict[Hashable, tuple[int, ...]] = {}
        sums: dict[Key, tuple[int, ...]] = {}
        for place, (keys, values) in self._sources(survey):
            before = self._seen.get(place)
            # A counter that decreases is that of another lane, or process, in the place of the former.
            fresh = before is None or any(now < then for now, then in zip(values, before, strict=True))
            added = values if before is None or fresh else tuple(n - b for n, b in zip(values, before, strict=True))
            seen[place] = values
            for key in keys:
                old = sums.get(key) or self.sums.get(key) or (0,) * len(values)
                sums[key] = tuple(a + b for a, b in zip(old, added, strict=True))
        self._seen, self.sums = seen, sums

    def _sources(self, survey: Survey) -> Iterator[tuple[Hashable, _Source]]:
        for process in survey.processes:
            uid = user(process.uid)
            for device in process.devices:
                place, nic = (process.pid, device.guid), (uid, device.address)
                for group, values in _of_device(device):
                    yield (*place, group), _Source((Key(group, "device", nic),), values)
                # A NIC without lanes has sums too: Prometheus misses what a series begins with.
                yield (*place, "lanes"), _Source((Key("lane", "device", nic),), (0,) * len(COUNTERS["lane"]))
                for lane in device.lanes:
                    labels = (*nic, lane.peer, str(lane.lane))
                    keys = tuple(Key("lane", detail, labels[: 2 + DETAILS.index(detail)]) for detail in self._details)
                    yield (*place, lane.peer, lane.lane), _Source(keys, _values(lane, "lane"))


def user(uid: int | None) -> str:
    """The label of a user; empty where it is not known."""
    return "" if uid is None else str(uid)


def _of_device(device: DeviceSnapshot) -> Iterator[tuple[str, tuple[int, ...]]]:
    for group in ("messages", "discards", "path_client"):
        counters = getattr(device, group)
        if counters is not None:  # the path client's, with another policy
            yield group, _values(counters, group)


def _values(counters: object, group: str) -> tuple[int, ...]:
    return tuple(getattr(counters, name) for name in COUNTERS[group])
