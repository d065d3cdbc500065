# SPDX-License-Identifier: Apache-2.0
"""Two path services and their hosts, as a model: whatever fails, two never assign at once, and one does afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.path_service.availability.messages import Ack, Beat, Claim, Follow, Ours, Snapshot
from sdn.path_service.availability.pair import (
    Action,
    Adopt,
    Ask,
    Close,
    Keep,
    Pair,
    Position,
    Send,
    Times,
    Turn,
)
from sdn.path_service.control.book import Change

TIMES = Times()
STEP_S = 0.05
LONG_S = 12.0  # in which services that reach each other agree


@dataclass
class Disk:
    generation: int = 0
    alone: bool = False
    changes: list[int] = field(default_factory=list)  # each is unlike all others

    @property
    def last(self) -> int:
        return len(self.changes)


@dataclass
class Service:
    """One of two: what it has on its disk, and its process, if it runs."""

    index: int
    disk: Disk = field(default_factory=Disk)
    pair: Pair | None = None
    began_s: float = 0.0
    is_stopped: bool = False
    asked: list[tuple[int, int]] = field(default_factory=list)  # changes, by number, that are not answered yet
    waiting: list[tuple[int, Ours | None]] = field(default_factory=list)  # what has come while it is stopped


@dataclass
class Host:
    """What a host remembers, and the service that it is connected to."""

    name: str
    seen: int = 0
    voted: tuple[int, str] = (0, "")
    at: int | None = None
    is_served: bool = False
    life: int = 0  # a new one of the same place has another name


class Model:
    def __init__(self, hosts: int, seed: int) -> None:
        self.now_s = 0.0
        self.random = random.Random(seed)
        self.names = count(1)
        self.links = count(1)
        self.ends: dict[int, tuple[int, Pair]] = {}  # of each link: the service that made it, and its process
        self.accepted: dict[int, Pair] = {}  # the process at the other end
        self.flying: list[tuple[float, int, int, int, Ours | None]] = []  # when, order, to, link, message or end
        self.arrival: dict[tuple[int, int], float] = {}
        self.order = count()
        self.voting: list[tuple[float, int, Pair, Host, int, tuple[int, str], bool]] = []  # when, order, to, host, life
        self.services = [Service(0), Service(1)]
        self.hosts = [Host(f"h{number}") for number in range(hosts)]
        self.answered: set[int] = set()
        self.is_slow = False  # between the services, and from hosts to them
        self.cut: set[int] = set()  # services that hear nothing from the other one
        self.out_of_reach: set[tuple[int, int]] = set()  # of a host, a service
        for service in self.services:
            self.start(service)

    # -- what fails ----------------------------------------------------------------------------------------------------

    def start(self, service: Service) -> None:
        if service.pair is None:
            disk = service.disk
            name = f"s{next(self.names)}"
            position = Position(disk.generation, disk.last)
            service.pair = Pair(name, position, standby=service.index == 1, alone=disk.alone, times=TIMES)
            service.began_s, service.is_stopped = self.now_s, False
            service.waiting.clear()

    def kill(self, service: Service) -> None:
        if service.pair is not None:
            for link in list(self.ends):
                if service.pair in (self.ends[link][1], self.accepted[link]):
                    self.end(link, service.index)
            service.pair = None
            service.asked.clear()
            service.is_stopped = False
            for host in self.hosts:
                if host.at == service.index:
                    self.leave(host)

    def end(self, link: int, by: int) -> None:
        """One side of a link has closed it; the other learns of it later."""
        self.fly(1 - by, link, None)

    def fly(self, to: int, link: int, message: Ours | None) -> None:
        at_s = max(self.now_s + self.late_s(), self.arrival.get((link, to), 0.0))  # in order, as TCP
        self.arrival[link, to] = at_s
        self.flying.append((at_s, next(self.order), to, link, message))

    def late_s(self) -> float:
        return self.random.choice((0.0, 0.01, 0.1, 1.5) if self.is_slow else (0.0, 0.01))

    def leave(self, host: Host) -> None:
        at, host.at = host.at, None
        if at is not None and host.is_served and (pair := self.services[at].pair) is not None:
            host.is_served = False
            pair.left(self.id_of(host))
        host.is_served = False

    @staticmethod
    def id_of(host: Host) -> str:
        return f"{host.name}.{host.life}"

    # -- time ----------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            self.step()
            self.check()

    def step(self) -> None:
        for service in self.services:
            if service.pair is not None and not service.is_stopped:
                waiting, service.waiting = service.waiting, []
                for link, message in waiting:
                    self.receive(service, link, message)
        due = sorted(entry for entry in self.flying if entry[0] <= self.now_s)
        self.flying = [entry for entry in self.flying if entry[0] > self.now_s]
        for _, _, to, link, message in due:
            if to in self.cut:
                self.flying.append((self.now_s + STEP_S, next(self.order), to, link, message))
                continue
            service = self.services[to]
            if service.is_stopped:
                service.waiting.append((link, message))
            elif service.pair is not None:
                self.receive(service, link, message)
        self.count_votes()
        for service in self.services:
            pair = service.pair
            if pair is None or service.is_stopped:
                continue
            if pair.role == "waiting" and pair.alone and self.now_s > service.began_s + TIMES.lease_s:
                self.do(service, pair.start())
            self.do(service, pair.tick(self.now_s))
            made = any(owner is pair and self.alive(link) for link, (_, owner) in self.ends.items())
            wants = not made or pair.suspects(self.now_s)
            if wants and not pair.is_followed() and 1 - service.index not in self.cut and self.random.random() < 0.3:
                self.connect(service)
        for host in self.hosts:
            self.move(host)

    def alive(self, link: int) -> bool:
        index, maker = self.ends[link]
        return maker is self.services[index].pair and self.accepted[link] is self.services[1 - index].pair

    def connect(self, service: Service) -> None:
        other = self.services[1 - service.index]
        if other.pair is None or service.pair is None:
            return
        link = next(self.links)
        self.ends[link] = service.index, service.pair
        self.accepted[link] = other.pair
        service.pair.linked(link)
        self.fly(other.index, link, service.pair.follow("token"))

    def receive(self, service: Service, link: int, message: Ours | None) -> None:
        pair = service.pair
        assert pair is not None
        if pair not in (self.ends.get(link, (0, None))[1], self.accepted.get(link)):
            return  # it was for an earlier process
        if message is None:
            self.ends.pop(link)
            self.accepted.pop(link)
            self.do(service, pair.lost(self.now_s, link))
            return
        if message.__class__.__name__ == "Follow":
            pair.linked(link)
        self.do(service, pair.heard(self.now_s, link, message))

    def do(self, service: Service, actions: list[Action]) -> None:
        assert service.pair is not None
        for action in actions:
            match action:
                case Send():
                    if action.link in self.ends:
                        message = action.message
                        if isinstance(message, Snapshot):
                            told = tuple(changes(service.disk.changes))
                            data = message.number, message.name, message.generation, message.witnesses, len(told)
                            message = Snapshot(*data, changes=told)
                        self.fly(1 - service.index, action.link, message)
                case Close():
                    if action.link in self.ends:
                        self.end(action.link, service.index)
                        self.ends.pop(action.link)
                        self.accepted.pop(action.link)
                case Keep():
                    service.disk.generation, service.disk.alone = action.generation, action.alone
                case Adopt():
                    if isinstance(action.message, Snapshot):
                        told = [int(change.what) for change in action.message.changes]
                        service.disk = Disk(action.message.generation, False, told)
                    else:
                        new = [int(each.what) for each in action.message.changes if each.number > service.disk.last]
                        service.disk.changes += new
                case Ask():
                    for host in self.hosts:
                        if host.at == service.index:
                            self.ask(service, host, action)
                case Turn():
                    for host in self.hosts:
                        if host.at == service.index and action.role != "leading":
                            self.leave(host)

        pair = service.pair
        if pair.role != "leading":
            service.asked.clear()
        done = [what for number, what in service.asked if pair.alone or number <= pair.peer_last]
        self.answered.update(done)
        service.asked = [each for each in service.asked if each[1] not in done]

    def change(self, service: Service) -> None:
        """An operator asks for something."""
        assert service.pair is not None
        what = next(self.names)
        service.disk.changes.append(what)
        service.asked.append((service.disk.last, what))
        self.do(service, service.pair.wrote((list(changes(service.disk.changes))[-1],)))

    def ask(self, service: Service, host: Host, ask: Ask) -> None:
        pair = service.pair
        if pair is None:
            return
        is_heard = (self.hosts.index(host), service.index) not in self.out_of_reach
        for generation in ask.generations:
            is_new = generation > max(host.voted[0], host.seen)
            trial = ask.trial and (is_new or host.voted == (generation, pair.name))
            if is_new and not ask.trial:
                host.voted = generation, pair.name
            said = (generation, pair.name) if trial else host.voted
            if is_heard and said[0]:
                at_s = self.now_s + self.late_s()
                self.voting.append((at_s, next(self.order), pair, host, host.life, said, trial))

    def count_votes(self) -> None:
        """What hosts have said arrives, where they are still connected."""
        self.voting.sort(key=lambda entry: entry[:2])
        waiting, self.voting = self.voting, []
        for entry in waiting:
            at_s, _, pair, host, life, said, trial = entry
            service = None if host.at is None else self.services[host.at]
            if service is None or service.pair is not pair or host.life != life:
                continue
            if at_s > self.now_s or service.is_stopped:
                self.voting.append(entry)
            else:
                self.do(service, pair.voted(self.now_s, self.id_of(host), *said, trial))

    def move(self, host: Host) -> None:
        number = self.hosts.index(host)
        if host.at is not None:
            service = self.services[host.at]
            silent = service.is_stopped or (number, host.at) in self.out_of_reach
            pair = service.pair
            if pair is None or (silent and self.random.random() < 0.05):
                self.leave(host)
            elif pair.may_assign(self.now_s) and not host.is_served and not silent:
                self.greet(host, pair)
            elif not pair.may_assign(self.now_s) and not pair.suspects(self.now_s):
                self.leave(host)
            return
        at = self.random.randrange(2)
        service = self.services[at]
        if service.pair is None or service.is_stopped or (number, at) in self.out_of_reach:
            return
        self.do(service, service.pair.seen(self.now_s, host.seen, host.voted[0]))
        if service.pair.may_assign(self.now_s) or service.pair.suspects(self.now_s):
            host.at = at

    def greet(self, host: Host, pair: Pair) -> None:
        assert pair.data_generation >= host.seen
        host.seen, host.is_served = pair.data_generation, True
        pair.joined(self.id_of(host))

    # -- what has to hold ----------------------------------------------------------------------------------------------

    def leading(self) -> list[Pair]:
        return [s.pair for s in self.services if s.pair is not None and s.pair.may_assign(self.now_s)]

    def check(self) -> None:
        assert len(self.leading()) <= 1, "two services assign at once"

    def heal(self) -> None:
        self.is_slow = False
        self.cut.clear()
        self.out_of_reach.clear()
        for service in self.services:
            service.is_stopped = False
            self.start(service)


def changes(known: list[int]) -> Iterator[Change]:
    for number, what in enumerate(known, 1):
        yield Change(number, 0, "", "", str(what), ())


FAILURES = st.sampled_from(
    [
        "kill 0",
        "kill 1",
        "start 0",
        "start 1",
        "stop 0",
        "stop 1",
        "go on",
        "cut 0",
        "cut 1",
        "slow",
        "heal",
        "reach",
        "end",
        "change",
    ]
)


def fail(model: Model, what: str) -> None:
    word, _, number = what.partition(" ")
    service = model.services[int(number) if number.isdigit() else 0]
    if word == "kill":
        model.kill(service)
    elif word == "start":
        model.start(service)
    elif word == "stop":
        service.is_stopped = service.pair is not None
    elif what == "go on":
        for each in model.services:
            each.is_stopped = False
    elif word == "cut":
        model.cut.add(service.index)
    elif word == "slow":
        model.is_slow = True
    elif word == "heal":
        model.heal()
    elif word == "reach":
        model.out_of_reach = {
            (host, at) for host in range(len(model.hosts)) for at in range(2) if model.random.random() < 0.3
        }
    elif word == "end" and model.hosts:
        host = model.random.choice(model.hosts)
        model.leave(host)
        host.life, host.seen, host.voted = host.life + 1, 0, (0, "")
    elif word == "change":
        for each in model.services:
            pair = each.pair
            if pair is not None and not each.is_stopped and pair.may_assign(model.now_s):
                model.change(each)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 5), st.integers(0, 10_000), st.lists(st.tuples(FAILURES, st.integers(1, 40)), max_size=12))
def test_two_services_never_assign_at_once_and_one_does_when_all_is_well(
    hosts: int, seed: int, failures: list[tuple[str, int]]
) -> None:
    model = Model(hosts, seed)
    model.run(4.0)
    for what, steps in failures:
        fail(model, what)
        model.check()
        model.run(steps * STEP_S)
    model.heal()
    model.run(LONG_S)
    (leads,) = model.leading()
    assert all(host.is_served for host in model.hosts)
    assert {service.pair.data_generation for service in model.services if service.pair} == {leads.data_generation}
    first, other = (service.disk.changes for service in model.services)
    assert first == other
    assert model.answered <= {*first}, "what was answered is lost"
    if hosts:
        assert_other_takes_over(model)


def assert_other_takes_over(model: Model) -> None:
    """From the service that leads, when that is killed."""
    (leads,) = model.leading()
    assert leads.is_followed()
    model.kill(next(service for service in model.services if service.pair is leads))
    model.run(LONG_S)
    assert len(model.leading()) == 1, "hosts have voted in vain"
    assert all(host.is_served for host in model.hosts)


def test_hosts_that_voted_in_generations_which_no_disk_has_decide_in_later_ones() -> None:
    """Their votes were for a service that was killed. Before, they had none for the two, which counted lower."""
    model = Model(3, 1)
    model.run(4.0)
    for host in model.hosts:
        host.voted = 50, "killed"
        model.leave(host)
    model.run(LONG_S)
    assert_other_takes_over(model)


def test_a_leader_has_the_other_one_follow_anew_where_a_host_has_voted_and_only_there() -> None:
    pair = Pair("l", Position(0, 0), alone=True)
    pair.start()
    pair.linked(1)
    pair.heard(0.0, 1, Follow("token", "f", 0, 0, 0))
    assert pair.generation == 2
    assert pair.seen(0.1, 1, 2) == []
    _, sent = pair.seen(0.1, 1, 3)
    assert isinstance(sent, Send)
    assert sent.link == 1, "it stays linked"
    assert isinstance(sent.message, Snapshot)
    assert sent.message.generation == 4
    assert pair.seen(0.1, 1, 3) == []


def test_the_first_hosts_are_told_to_the_other_one_at_once() -> None:
    """Until it knows of a host, it could not take over."""
    pair = Pair("l", Position(0, 0), alone=True)
    pair.start()
    pair.linked(1)
    pair.heard(0.0, 1, Follow("token", "f", 0, 0, 0))
    assert pair.tick(0.01) == []
    pair.joined("first")
    (beat,) = pair.tick(0.02)
    assert isinstance(beat, Send)
    assert isinstance(beat.message, Beat)
    assert beat.message.witnesses == ("first",)
    pair.joined("second")
    assert pair.tick(0.03) == [], "it comes with the next beat"
    (beat,) = pair.tick(0.03 + TIMES.beat_s)
    assert isinstance(beat, Send)
    assert isinstance(beat.message, Beat)
    assert beat.message.witnesses == ("first", "second")


def test_a_late_acknowledgement_says_nothing_of_data_that_was_sent_after_its_beat() -> None:
    """Before, the leader wrote a generation that the other one had not heard of, and then won with older data."""
    leads, other = Pair("l", Position(0, 0), alone=True), Pair("f", Position(0, 0))
    leads.start()
    leads.linked(1)
    other.linked(1)
    (_, snapshot) = leads.heard(0.0, 1, other.follow("token"))
    assert isinstance(snapshot, Send)
    *_, first = other.heard(0.0, 1, snapshot.message)
    assert isinstance(first, Send)
    leads.heard(0.0, 1, first.message)
    assert (leads.data_generation, leads.is_followed()) == (2, True)
    (beat,) = leads.tick(0.2)
    assert isinstance(beat, Send)
    (late,) = other.heard(0.2, 1, beat.message)
    assert isinstance(late, Send)
    (_, snapshot) = leads.seen(0.25, 2, voted=50)
    assert isinstance(snapshot, Send)
    assert leads.heard(0.3, 1, late.message) == []
    assert (leads.data_generation, other.data_generation) == (2, 2)
    assert not leads.is_followed()
    *_, ack = other.heard(0.3, 1, snapshot.message)
    assert isinstance(ack, Send)
    assert leads.heard(0.3, 1, ack.message) == [Keep(51, False)]
    assert leads.is_followed()


def test_a_service_that_has_asked_for_votes_and_is_acknowledged_has_the_other_one_follow_anew() -> None:
    """Hosts that have voted for it do not vote again in this generation: the other one could not take over."""
    pair = Pair("l", Position(0, 0), alone=True)
    pair.start()
    for host in ("h0", "h1", "h2"):
        pair.joined(host)
    pair.linked(1)
    pair.heard(0.0, 1, Follow("token", "f", 0, 0, 0))
    asked = pair.generation + 1
    pair.heard(0.0, 1, Ack(1, 0))
    pair.tick(0.2)
    pair.tick(0.4)
    assert Ask((asked,), True) in pair.tick(0.55)
    assert pair.voted(0.55, "h0", asked, "l", trial=True) == []
    assert pair.voted(0.55, "h1", asked, "l", trial=True) == [Ask((asked,), False)]
    assert pair.voted(0.55, "h0", asked, "l") == []
    pair.heard(0.6, 1, Ack(3, 0))
    assert pair.tick(0.6) == [Close(1)]
    pair.linked(2)
    pair.heard(0.7, 2, Follow("token", "f", 2, 0, 2))
    assert pair.generation == asked, "votes are asked for in the next one"
    pair.heard(0.7, 2, Ack(4, 0))
    assert pair.tick(0.75) == [], "nothing was asked since"


def test_a_service_that_hears_and_is_not_heard_has_no_newer_data_than_the_one_that_took_over() -> None:
    """It answers the other one, which would like to follow, again and again, in ever higher generations."""
    model = Model(3, 1)
    model.run(4.0)
    (leads,) = model.leading()
    before, after = sorted(model.services, key=lambda service: service.pair is not leads)
    model.cut.add(after.index)
    model.out_of_reach = {(host, before.index) for host in range(3)}
    model.run(5.0)
    assert model.leading() == [after.pair]
    model.change(after)
    assert len(model.answered) == 1
    model.heal()
    model.run(LONG_S)
    assert model.leading() == [after.pair]
    assert model.answered == {*before.disk.changes}


def follows(hosts: int) -> Pair:
    """A service that follows, and has not heard from the one that leads for long."""
    pair = Pair("f", Position(0, 0))
    pair.linked(1)
    pair.heard(0.0, 1, Snapshot(1, "l", 5, tuple(f"h{number}" for number in range(hosts))))
    assert pair.tick(9.0) == [Ask((6,), True)]
    return pair


def test_enough_hosts_that_would_vote_are_asked_at_once_and_once() -> None:
    pair = follows(1000)
    said = [pair.voted(9.0, f"h{number}", 6, "f", trial=True) for number in range(1000)]
    assert said == [[]] * 500 + [[Ask((6,), False)]] + [[]] * 499
    assert pair.tick(9.1) == [Ask((6,), False)]


def test_votes_that_nobody_has_asked_for_are_forgotten() -> None:
    pair = follows(3)
    for generation in range(1000):
        pair.voted(9.0, "h0", 100 + generation, "f")
        pair.voted(9.0, f"other{generation}", 6, "f")
    assert not any(pair.has_vote("h0", generation, False) for generation in range(100, 1100))
    assert not any(pair.has_vote(f"other{number}", 6, False) for number in range(1000))
    assert pair.voted(9.0, "h0", 6, "f") == []
    assert any(isinstance(action, Turn) for action in pair.voted(9.0, "h1", 6, "f"))


def test_a_third_service_has_no_part_in_it() -> None:
    """Before, the one that follows led as soon as a third one let it, while the lease that it had given still held."""
    pair, third = follows(3), Pair("x", Position(0, 0))
    pair.heard(9.0, 1, Snapshot(2, "l", 20, ()))
    pair.linked(2)
    assert pair.heard(9.1, 2, third.follow("token")) == [Close(2)]
    assert pair.role == "following"


def test_a_service_is_not_led_to_where_generations_end() -> None:
    pair = Pair("a", Position(3, 0))
    pair.linked(1)
    assert pair.heard(0.0, 1, Follow("token", "b", 3, 0, 2**63 - 1)) == [Close(1)]
    pair.linked(2)
    (claim,) = pair.heard(0.0, 2, Follow("token", "b", 3, 0, 3, standby=True))
    assert claim == Send(2, Claim(4))


def test_a_service_does_not_lead_with_data_that_its_disk_has_not_taken() -> None:
    pair = follows(1)
    assert any(isinstance(action, Turn) for action in pair.voted(9.0, "h0", 6, "f"))
    assert pair.broken("the disk is full", Position(5, 0), all_of_it=False) == []
    done = pair.broken("the disk is full", Position(2, 7), all_of_it=True)
    assert done == [Keep(2, False), Turn("waiting", "the disk is full")]
    follow = pair.follow("token")
    assert (follow.generation, follow.last, follow.above) == (2, 7, 6)
