# SPDX-License-Identifier: Apache-2.0
"""Which of two path services leads. Pure: events come with their time in seconds, which never decreases.

The service that leads may answer hosts while it holds a lease. The other one, which follows, gives the lease by each
acknowledgement, and does not seek to lead before it is over. When one hears nothing from the other, hosts decide:
they vote, once for each generation. The service that leads asks for votes to go on alone, the one that follows to take
over, both for the generation after the one that they share, and either needs most of the hosts that it was serving. So
at most one of them gets these.

The service that leads does not know which of its last messages the other has got. It has to win every election that the
other could hold: one for each list of hosts, and each generation, since the last acknowledgement.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sdn.path_service.availability.messages import (
    Accept,
    Ack,
    Beat,
    Claim,
    Fenced,
    Follow,
    Offer,
    Ours,
    Snapshot,
    Stored,
    Yield,
)
from sdn.path_service.control.book import Change

_SKIPPED = 1000
"""Generations that a promotion skips: more than the other service can have led alone meanwhile."""
_MOST_AHEAD = 1 << 32
"""Generations that the other service may be ahead: a store that was repaired counts from the Unix time on."""

Role: TypeAlias = Literal["leading", "following", "waiting"]
"""`waiting`: neither leads nor has the data of one that does."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times of two services, the same for both, in seconds."""

    lease_s: float = 1.0
    """How long an acknowledgement lets the other service lead, from when it was asked for."""
    beat_s: float = 0.2
    """Between two messages that ask for one."""

    @property
    def seek_s(self) -> float:
        """Without a beat for this time, the service that follows seeks to lead: longer, as two clocks may differ."""
        return 1.1 * self.lease_s


@dataclass(frozen=True, slots=True)
class Position:
    """How new the data of a service is: the generation that it is of, and the number of the last change."""

    generation: int
    last: int


@dataclass(frozen=True, slots=True)
class Send:
    """To the other service. `Snapshot` goes without data, which the caller adds."""

    link: int
    message: Ours


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a link to the other service."""

    link: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Writes to the disk, before anything that comes after it, in which generation this service leads."""

    generation: int
    alone: bool
    """No other service can lead, so this one may after a restart."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Writes to the disk, before anything that comes after it, what the other service has sent."""

    message: Snapshot | Stored


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks the hosts that are here for their vote, but for those that have given it.

    First as a `trial`, which binds nobody: a service that hears no answers must not take votes from the other one.
    """

    generations: tuple[int, ...]
    trial: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """The role is another one."""

    role: Role
    why: str
    takes_over: bool = False
    """It leads instead of the other service, which it followed."""


Action: TypeAlias = Send | Close | Keep | Adopt | Ask | Turn


@dataclass(frozen=True, slots=True)
class _Election:
    number: int
    """Of the beat from which the other service knows of it."""
    generation: int
    witnesses: frozenset[str]

    def is_won(self, votes: set[str], leads: bool) -> bool:
        """Without a host there is nobody to decide, so that the service that leads goes on."""
        if not self.witnesses:
            return leads
        most = len(self.witnesses) // 2
        return len(votes) > most and len(votes & self.witnesses) > most


class Pair:
    """One of two services. Its functions return what is to be done, in this order.

    Links to the other service have numbers, which the caller chooses and never gives twice. `name` is unlike that of
    the other one.
    """

    def __init__(
        self, name: str, position: Position, *, standby: bool = False, alone: bool = False, times: Times | None = None
    ) -> None:
        self.name = name
        self.times = times or Times()
        self.role: Role = "waiting"
        self.generation = position.generation
        """In which this service leads, or would when the other one has followed; otherwise `data_generation`."""
        self.data_generation = position.generation
        """Of the last service that has led with the data that is here. Hosts are told this one."""
        self.last = position.last
        self.standby = standby
        self.alone = alone
        """While it leads: the other service cannot lead. While it waits: neither could when this one ended."""
        self.peer_last = 0
        """The last change that the other service has on its disk."""
        self.followed_s: float | None = None
        """While it leads and is followed: when the beat that was acknowledged last was sent."""
        self.heard_s = 0.0
        """While it follows: when the last beat came."""
        self._of = ""
        self._above = position.generation
        self._links: set[int] = set()
        self._offered: set[int] = set()
        self._follower: int | None = None  # the link by which it follows or is followed
        self._leader: int | None = None
        self._lease_s = 0.0  # when the lease ends, while it leads and not alone
        self._number = 0
        self._sent: dict[int, float] = {}  # when beats were sent that are not acknowledged
        self._beat_at_s = 0.0
        self._hosts: set[str] = set()
        self._told: frozenset[str] = frozenset()
        self._elections: list[_Election] = []
        self._votes: dict[int, set[str]] = {}
        self._trials: dict[int, set[str]] = {}
        self._is_sure = False  # enough of these have been seen
        self._has_asked = False  # while it leads and is followed: for votes, not as a trial
        self._asked = 0  # while it follows: the generation that it has asked votes for

    # -- what holds ----------------------------------------------------------------------------------------------------

    def may_assign(self, now_s: float) -> bool:
        """Whether this service may answer hosts."""
        return self.role == "leading" and (self.alone or now_s < self._lease_s)

    def is_followed(self) -> bool:
        """Whether the other service has the data of this one, which leads."""
        return self.role == "leading" and not self.alone and self.followed_s is not None

    @property
    def witnesses(self) -> frozenset[str]:
        """The hosts that decide, as far as this service knows."""
        return self._elections[-1].witnesses if self._elections else frozenset()

    def suspects(self, now_s: float) -> bool:
        """Whether this service, which follows, may have to take over soon: hosts that come had better stay."""
        return self.role == "following" and (self._leader is None or now_s >= self.heard_s + self.times.lease_s / 2)

    def follow(self, token: str) -> Follow:
        """The first line of a link that this service has made."""
        above = max(self._above, self._asked)
        return Follow(
            token,
            self.name,
            self.data_generation,
            self.last,
            above,
            self.standby,
            self.role == "leading",
            self._of,
            self.times.lease_s,
        )

    # -- links ---------------------------------------------------------------------------------------------------------

    def linked(self, link: int) -> None:
        """There is a link, whichever side has made it."""
        self._links.add(link)

    def lost(self, now_s: float, link: int) -> list[Action]:
        """A link has ended."""
        self._links.discard(link)
        if link == self._leader:
            self._leader = None
        if link == self._follower:
            self._follower = None
            return self.tick(now_s)
        return []

    def heard(self, now_s: float, link: int, message: Ours) -> list[Action]:
        """A message has come by a link."""
        if link not in self._links:
            return []
        match message:
            case Follow():
                return self._on_follow(now_s, link, message)
            case Claim():
                return self._on_claim(link, message)
            case Offer():
                return self._close(link) if self.role == "leading" else [Send(link, Accept())]
            case Accept():
                offered = link in self._offered and self.role != "leading"
                return self._yield(link, max(self._above, self._asked) + 1) if offered else self._close(link)
            case Yield():
                return self._on_yield(message)
            case Fenced():
                self._above = max(self._above, message.generation)
                if self.role == "leading" and message.generation > self.data_generation:
                    return self._wait(f"the other service leads in generation {message.generation}")
                return []
            case Ack():
                return self._on_ack(now_s, link, message)
            case Snapshot() | Beat() | Stored():
                return self._on_leader(now_s, link, message)

    def _on_follow(self, now_s: float, link: int, follow: Follow) -> list[Action]:
        done: list[Action] = []
        if max(follow.generation, follow.above) > self._above + _MOST_AHEAD:
            return self._close(link)
        if self.role == "following" and not self.suspects(now_s):
            return self._close(link)  # this is a third one, or the one that leads has ended and its last words come yet
        if self.role == "leading":
            if follow.generation <= self.data_generation or follow.of == self.name:
                if follow.leads:
                    return [Send(link, Fenced(self.data_generation))]
                self._above = max(self._above, follow.above)
                return self._pair(now_s, link)
            done = self._wait(f"the other service has data of generation {follow.generation}", {link})
        self._above = max(self._above, follow.above, follow.generation)
        if follow.leads:  # this one follows it by a link of its own
            return [*done, *self._close(link)]
        theirs = follow.generation, follow.last, not follow.standby, follow.name
        if theirs < (self.data_generation, self.last, not self.standby, self.name):
            return [*done, Send(link, Claim(max(self._above, self._asked) + 1))]
        self._offered.add(link)  # a service that hears nothing could not lead, and this one could not after a `Yield`
        return [*done, Send(link, Offer())]

    def _on_claim(self, link: int, claim: Claim) -> list[Action]:
        if self.role == "leading":
            return self._close(link)
        return self._yield(link, claim.generation)

    def _yield(self, link: int, generation: int) -> list[Action]:
        self._above = max(self._above, self._asked, generation)
        done = self._wait("the other service may lead", {link})
        return [*done, Send(link, Yield(generation))]

    def _on_yield(self, message: Yield) -> list[Action]:
        if self.role == "leading":
            return []
        return self._lead(max(message.generation, self._above + 1), "the other service lets it")

    # -- while it leads ------------------------------------------------------------------------------------------------

    def _pair(self, now_s: float, link: int) -> list[Action]:
        """Has the other service follow. Each time there is a new generation, for which nobody has voted."""
        done = [] if self._follower in (None, link) else self._close(self._follower)
        self.generation = self._above = max(self._above, self.generation) + 1
        if self.alone:  # the other cannot seek to lead before it has followed for that long
            self.alone = False
            self._lease_s = now_s + self.times.lease_s
        self.followed_s, self.peer_last = None, 0
        self._follower = link
        self._forget_trials()
        self._told = frozenset(self._hosts)
        self._sent.clear()  # acknowledgements of earlier beats say nothing of this snapshot
        number = self._next(now_s)
        self._elections.append(_Election(number, self.generation + 1, self._told))
        snapshot = Snapshot(number, self.name, self.generation, tuple(sorted(self._told)))
        return [*done, Keep(self.data_generation, False), Send(link, snapshot)]

    def _next(self, now_s: float) -> int:
        self._number += 1
        self._sent[self._number] = now_s
        self._beat_at_s = now_s + self.times.beat_s
        return self._number

    def _beat(self, now_s: float, link: int) -> list[Action]:
        number, hosts = self._next(now_s), frozenset(self._hosts)
        if hosts == self._told:
            return [Send(link, Beat(number))]
        self._told = hosts
        self._elections.append(_Election(number, self.generation + 1, hosts))
        return [Send(link, Beat(number, tuple(sorted(hosts))))]

    def _on_ack(self, now_s: float, link: int, ack: Ack) -> list[Action]:
        sent_s = self._sent.get(ack.number)
        if link != self._follower or sent_s is None:
            return []
        self._sent = {number: at_s for number, at_s in self._sent.items() if number >= ack.number}
        self._lease_s = max(self._lease_s, sent_s + self.times.lease_s)
        self.followed_s, self.peer_last = sent_s, ack.last
        known = max((i for i, each in enumerate(self._elections) if each.number <= ack.number), default=0)
        del self._elections[:known]
        if self.data_generation == self.generation:
            return []
        self.data_generation = self.generation
        return [Keep(self.generation, False)]

    def _seek_to_go_on(self, now_s: float) -> list[Action]:
        if now_s >= self._lease_s:
            return self._wait("the other service does not answer, and most hosts have not voted for this one")
        if self._is_left_alone(now_s):
            return self._seek(tuple(sorted({election.generation for election in self._elections})))
        has_asked = self._has_asked
        self._forget_trials()
        if not has_asked or self._follower is None:
            return []
        # hosts may have voted, so that the other service could not win: it follows anew, in the next generation
        return self._close(self._follower)

    def _is_left_alone(self, now_s: float) -> bool:
        return self._follower is None or now_s >= self._lease_s - self.times.lease_s / 2

    # -- while it follows ----------------------------------------------------------------------------------------------

    def _on_leader(self, now_s: float, link: int, message: Snapshot | Beat | Stored) -> list[Action]:
        if self.role == "leading":
            return self._close(link)
        if isinstance(message, Snapshot):
            if message.generation <= max(self._above, self._asked):
                return self._close(link)  # it does not know yet for what votes were asked
            done: list[Action] = [Close(other) for other in sorted(self._links - {link})]
            self._links = {link}
            if self.role != "following":
                self.role = "following"
                done.append(Turn("following", f"generation {message.generation} leads"))
            self._leader, self._number, self._of = link, message.number, message.name
            self.generation = self.data_generation = self._above = message.generation
            self.last, self._asked, self.alone = message.last, 0, False
            self._votes.clear()
            self._forget_trials()
            self._witness(message.number, message.witnesses)
            self.heard_s = now_s
            return [*done, Adopt(message), Send(link, Ack(message.number, self.last))]
        if self.role != "following" or link != self._leader or self._asked:
            return self._close(link)
        self.heard_s = now_s
        if isinstance(message, Stored):
            self.last = max(self.last, message.changes[-1].number)
            return [Adopt(message), Send(link, Ack(self._number, self.last))]
        self._number = message.number
        if message.witnesses is not None:
            self._witness(message.number, message.witnesses)
        return [Send(link, Ack(message.number, self.last))]

    def _witness(self, number: int, witnesses: Iterable[str]) -> None:
        self._elections = [_Election(number, self.generation + 1, frozenset(witnesses))]

    # -- hosts ---------------------------------------------------------------------------------------------------------

    def seen(self, now_s: float, generation: int, voted: int = 0) -> list[Action]:
        """A host says that a service of this generation has welcomed it, and in which it has voted.

        It does not vote again in these. So where the hosts would decide in one, the other service follows anew in a
        later one, by the same link.
        """
        self._above = max(self._above, generation, voted)
        if self.role == "leading" and generation > self.data_generation:
            return self._wait(f"a host has been welcomed by generation {generation}")
        if self.role == "leading" and self._follower is not None and voted > self.generation:
            return self._pair(now_s, self._follower)
        return []

    def joined(self, host: str) -> None:
        """A host that votes is served."""
        self._hosts.add(host)

    def left(self, host: str) -> None:
        """A host is served no more."""
        self._hosts.discard(host)

    def voted(self, now_s: float, host: str, generation: int, name: str, trial: bool = False) -> list[Action]:
        """A host, which is here, tells for whom it has voted, or in a `trial` for whom it would."""
        if name != self.name or self.has_vote(host, generation, trial):
            return []
        if not any(each.generation == generation and host in each.witnesses for each in self._elections):
            return []  # also from a host that makes up generations
        (self._trials if trial else self._votes).setdefault(generation, set()).add(host)
        if self.role == "leading" and not self._is_left_alone(now_s):
            return []
        if not trial:
            return self._won()
        if self._is_sure or not self._would_win():
            return []
        self._is_sure = True  # from now on `tick` asks those that have not voted: for each answer it would be too often
        self._has_asked = self.role == "leading"
        return [Ask(tuple(sorted({each.generation for each in self._elections})), False)]

    def has_vote(self, host: str, generation: int, trial: bool) -> bool:
        """Whether a host has voted for this service, or would."""
        return host in (self._trials if trial else self._votes).get(generation, ())

    def _seek(self, generations: tuple[int, ...]) -> list[Action]:
        if won := self._won():
            return won
        would_win = self._would_win()
        self._has_asked |= would_win and self.role == "leading"
        return [Ask(generations, not would_win)]

    def _would_win(self) -> bool:
        leads = self.role == "leading"
        return all(each.is_won(self._trials.get(each.generation, set()), leads) for each in self._elections)

    def _won(self) -> list[Action]:
        """Leads alone if every election is won."""
        leads = self.role == "leading"
        if not self._elections or (not leads and not self._asked):
            return []
        if not all(each.is_won(self._votes.get(each.generation, set()), leads) for each in self._elections):
            return []
        generation = max(election.generation for election in self._elections)
        return self._lead(generation, "most hosts have voted for it")

    # -- time, and the operator ----------------------------------------------------------------------------------------

    def start(self) -> list[Action]:
        """This service has started. It leads at once if it did so alone when it ended."""
        return self._lead(self._above + 1, "it led alone before") if self.alone else []

    def broken(self, why: str, position: Position, *, all_of_it: bool) -> list[Action]:
        """The data of the service that leads could not be written here: `all_of_it`, or a change. This is on the disk.

        A service that has taken over meanwhile goes on without a change, which nobody was told of.
        """
        self.last = position.last
        if self.role == "leading" and not all_of_it:
            return []
        self.data_generation = self.generation = position.generation
        return self._wait(why)

    def promote(self) -> list[Action]:
        """An operator says that the other service does not lead."""
        return [] if self.role == "leading" else self._lead(self._above + _SKIPPED, "an operator said so")

    def tick(self, now_s: float) -> list[Action]:
        """Does what is due. To be called a few times in `beat_s`."""
        if self.role == "leading" and not self.alone:
            done = self._seek_to_go_on(now_s)
            # A follower that knows of no host cannot take over, so it is told of the first ones at once.
            is_due = now_s >= self._beat_at_s or (self._hosts and not self._told)
            if self.role == "leading" and self._follower is not None and is_due:
                done += self._beat(now_s, self._follower)
            return done
        if self.role == "following" and now_s >= self.heard_s + self.times.seek_s:
            self._asked = self.generation + 1
            return self._seek((self._asked,))
        return []

    def wrote(self, changes: tuple[Change, ...]) -> list[Action]:
        """This service, which leads, has changes on its disk."""
        self.last = max(self.last, changes[-1].number)
        return [] if self._follower is None else [Send(self._follower, Stored(changes))]

    def _lead(self, generation: int, why: str) -> list[Action]:
        was = self.role
        self.role, self.alone, self._of = "leading", True, self.name
        self.generation = self.data_generation = generation
        self._above = max(self._above, generation)
        done = self._forget()
        return [
            *done,
            Keep(generation, True),
            *([] if was == "leading" else [Turn("leading", why, was == "following")]),
        ]

    def _wait(self, why: str, but: frozenset[int] | set[int] = frozenset()) -> list[Action]:
        """Gives up what it is, and all links but these."""
        was, self.role = self.role, "waiting"
        self._above = max(self._above, self._asked)
        done = self._forget(but)
        if self.alone:
            self.alone = False
            done.append(Keep(self.data_generation, False))
        self.generation = self.data_generation
        self._hosts.clear()
        return done if was == "waiting" else [*done, Turn("waiting", why)]

    def _forget(self, but: frozenset[int] | set[int] = frozenset()) -> list[Action]:
        closed: list[Action] = [Close(link) for link in sorted(self._links - but)]
        self._links &= but
        self._offered.clear()
        self._follower = self._leader = self.followed_s = None
        self._elections, self._asked = [], 0
        self._sent.clear()
        self._votes.clear()
        self._forget_trials()
        return closed

    def _forget_trials(self) -> None:
        self._trials.clear()
        self._is_sure = self._has_asked = False

    def _close(self, link: int) -> list[Action]:
        self._links.discard(link)
        self._follower = None if link == self._follower else self._follower
        self._leader = None if link == self._leader else self._leader
        return [Close(link)]
