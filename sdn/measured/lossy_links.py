# SPDX-License-Identifier: Apache-2.0
"""Which links lose packets, by the lanes that say so. No I/O.

A probe tells the way up to the router that answers, and not what happens behind it. Lanes that lose packets do: a link
is named when lanes of several hosts over it lose packets, they are most of the lanes over it, and no small part of
those that lose packets anywhere: where hosts or queues are overloaded, lanes on all links do.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, KeysView, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Link = TypeVar("Link", bound=Hashable)

RECENT_S = 3.0
"""Reports of lanes that are at most this old count together."""
LEAST_HOSTS = 2
"""Hosts that must have lost packets over a link before it is named, so that none can name one by itself."""
SURE_HOSTS = 3
"""With fewer hosts, each has to lose packets again when it has come back to the link: a host may have been held up."""
_LEAST_PART = 1 / 3  # of the lanes that lose packets anywhere: the way back of some may be lossy, which is not known
_GATHERING_S = 0.3  # from the first report until one judges: other lanes on the same link need as long to notice
_FIRST_S = 10.0  # for which a link is avoided at first
_LONGEST_S = 320.0


@dataclass(frozen=True, slots=True)
class Lossy(Generic[Link]):
    """A link, and those with the same evidence, that lost packets of `lossy` lanes out of `lanes`, of `hosts` hosts."""

    links: tuple[Link, ...]
    lossy: int
    lanes: int
    hosts: int


@dataclass(slots=True)
class _Report(Generic[Link]):
    at_s: float
    host: Hashable
    links: tuple[Link, ...]
    again: bool  # the lane has lost packets of the same path shortly before


@dataclass(frozen=True, slots=True)
class _Avoided:
    until_s: float
    for_s: float


class LossyLinks(Generic[Link]):
    """Names lossy links, and says for how long to avoid them: 10 s at first, twice as long each time that they still
    lose packets afterwards. Times are in seconds, and never decrease.
    """

    def __init__(self) -> None:
        self._reports: dict[Hashable, _Report[Link]] = {}  # by lane, the oldest first
        self._avoided: dict[Link, _Avoided] = {}  # also those of former times
        self._now: dict[Link, None] = {}
        self._judge_s: float | None = None

    @property
    def avoided(self) -> KeysView[Link]:
        """The links that are to be avoided now."""
        return self._now.keys()

    def report(self, now_s: float, lane: Hashable, host: Hashable, links: Iterable[Link]) -> None:
        """A lane of a host, whose path has these links, has lost packets."""
        path, before = tuple(links), self._reports.get(lane)
        again = before is not None and before.links == path and now_s - before.at_s <= RECENT_S
        self._reports[lane] = _Report(now_s, host, path, again)
        if self._judge_s is None:
            self._judge_s = now_s + _GATHERING_S

    def is_due(self, now_s: float) -> bool:
        """Whether there is something to `judge`."""
        return self._judge_s is not None and now_s >= self._judge_s

    def judge(self, now_s: float, lanes: Mapping[Link, int]) -> list[Lossy[Link]]:
        """Names links that lose packets and were not avoided; each explains reports that no other one does.

        lanes: the number of lanes over each link, lossy or not.
        """
        self._judge_s = None
        self._reports = {lane: report for lane, report in self._reports.items() if now_s - report.at_s <= RECENT_S}
        reports = [report for report in self._reports.values() if self._now.keys().isdisjoint(report.links)]
        found, least = [], _LEAST_PART * len(reports)
        while (named := _named(reports, lanes, least)) is not None:
            found.append(named)
            for link in named.links:
                before = self._avoided.get(link, _Avoided(0.0, 0.0))
                again = now_s <= before.until_s + before.for_s
                for_s = min(2 * before.for_s, _LONGEST_S) if again else _FIRST_S
                self._avoided[link], self._now[link] = _Avoided(now_s + for_s, for_s), None
            reports = [report for report in reports if self._now.keys().isdisjoint(report.links)]
        return found

    def over(self, now_s: float) -> list[Link]:
        """Links that need not be avoided any longer: each is told once."""
        found = [link for link in self._now if self._avoided[link].until_s <= now_s]
        for link in found:
            del self._now[link]
        return found

    def forget(self, links: Iterable[Link]) -> None:
        """An operator has cut or mended these links."""
        for link in links:
            self._avoided.pop(link, None)
            self._now.pop(link, None)


def _named(reports: Iterable[_Report[Link]], lanes: Mapping[Link, int], least: float) -> Lossy[Link] | None:
    """The links that explain most of the reports, and `least` of them; None where no link has enough evidence."""
    counted, hosts, again = Counter[Link](), dict[Link, set[Hashable]](), dict[Link, set[Hashable]]()
    for report in reports:
        for link in report.links:
            counted[link] += 1
            hosts.setdefault(link, set()).add(report.host)
            again.setdefault(link, set()).update([report.host] if report.again else [])
    enough = {
        link: (count, count / lanes[link])
        for link, count in counted.items()
        if count >= least
        and (len(hosts[link]) >= SURE_HOSTS or len(again[link]) >= LEAST_HOSTS)
        and 2 * count > lanes.get(link, 0) > 0
    }
    if not enough:
        return None
    most = max(enough.values())
    links = tuple(link for link, evidence in enough.items() if evidence == most)
    return Lossy(links, most[0], lanes[links[0]], max(len(hosts[link]) for link in links))
