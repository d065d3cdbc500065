# SPDX-License-Identifier: Apache-2.0
"""Native code reads and answers hosts' renewals as Python does, and leaves to Python what may need a decision."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdn._native import Done, Elephants, Host, Pair, fields
from sdn.path_service import assignments
from sdn.path_service.journal import Digest
from sdn.path_service.links import links_named
from sdn.path_service.messages import (
    MAX_HOST_LINE,
    Announce,
    Assign,
    Measured,
    MeasuredFlow,
    Ping,
    Pong,
    Release,
    UsualMessage,
    from_host,
    from_service,
    to_line,
)
from sdn.path_service.parties import Client
from sdn.path_service.pinning import Sends
from sdn.path_service.service import Options, PathService
from tests.sdn.path_service.sample import address, fabric, hello

HOSTS = 6
TOPOLOGY = fabric()


def a_service(options: Options) -> PathService:
    service = PathService(TOPOLOGY, options)
    for conn in range(HOSTS):
        service.connect(0.0, conn, hello(TOPOLOGY, conn, fixed=conn == 0))
    return service


class Native:
    """The host of a connection, as the server has it."""

    def __init__(self, service: PathService, conn: int, is_logged: bool = True) -> None:
        self.service, self.conn = service, conn
        self.host = Host(1e9, 1e9, MAX_HOST_LINE, 0.0)
        self.host.serve(service.elephants_of(conn))
        self.digest, self.said = Digest(), b""
        self.is_logged = is_logged
        self.renewed = 0

    def say(self, now_s: float, messages: list[UsualMessage]) -> Sends:
        """What comes of these messages, as far as possible without Python."""
        self.host.is_clear = True
        done = Done(self.is_logged)
        lines = b"".join(to_line(each) for each in messages)
        left, out = self.host.answer(self.conn, lines, now_s, done)
        self.said = b",".join(said for _, said in done.said)
        self.digest.add_native(done.answers, done.counted)
        self.renewed += done.renewed
        if done.renewed:
            self.service.counts["announced"] += done.renewed
            self.service.counts["released"] += done.renewed
        sends: Sends = [(self.conn, from_service(line)) for line in out.splitlines()]
        assert self.host.is_clear == (not left)
        assert self.said == lines[: len(lines) - len(left)][:-1].replace(b"\n", b",")
        more = self.service.handle(now_s, self.conn, map(from_host, left.splitlines()))
        self.digest.add(more)
        return sends + more


announcements = st.builds(
    Announce,
    st.integers(0, 5),
    st.sampled_from([address(TOPOLOGY, host) for host in range(HOSTS)]),
    st.integers(0, 2**63 - 1),
    st.sampled_from(["", "a", "a job"]),
    st.sampled_from([None, 0.5, 2.0]),
    st.sampled_from([4791, 5000]),
    st.sampled_from([None, None, 50000]),
)
messages = st.one_of(
    announcements,
    st.builds(Release, st.integers(0, 2**63 - 1)),
    st.builds(Ping, st.integers(0, 2**63 - 1)),
    st.builds(lambda number: Measured((MeasuredFlow(number, 1000, 0.1),)), st.integers(0, 5)),
)


def said_by(rng: random.Random) -> Iterator[UsualMessage]:
    """What a host says at once: mostly renewals, sometimes of elephants that are not open."""
    for _ in range(rng.randrange(1, 4)):
        number = rng.randrange(6)
        peer = address(TOPOLOGY, 3 + number % 3) if rng.random() < 0.9 else "10.9.9.9"
        if rng.random() < 0.8:
            yield Release((number + 3) % 6)
        if rng.random() < 0.9:
            yield Announce(
                number, peer, rng.randrange(1 << 20), rng.choice(["", "a"]), None, rng.choice([4791] * 9 + [5000])
            )
        if rng.random() < 0.1:
            yield Ping(number)
            yield Measured((MeasuredFlow(number, 1000, 0.1),))


@pytest.mark.parametrize("options", [Options(), Options(rates=True), Options("ecmp")])
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_native_code_answers_is_what_handling_the_messages_gives(
    monkeypatch: pytest.MonkeyPatch, options: Options, seed: int
) -> None:
    monkeypatch.setattr(assignments, "_BATCH", 1)  # of pairs with new ports most wait, and may renew meanwhile
    rng = random.Random(seed)
    services = a_service(options), a_service(options)
    hosts = [Native(services[0], conn) for conn in range(HOSTS)]
    digests = [Digest() for _ in range(HOSTS)]
    links = [list(links_named(TOPOLOGY, name)) for name in ("spine1", "spine2", "leaf1:4")]
    for step in range(200):
        now_s = float(step)
        if rng.random() < 0.05:
            which, up = rng.choice(links), rng.random() < 0.5
            assert services[0].link(now_s, which, up) == services[1].link(now_s, which, up)
        conn, said = rng.randrange(3), [*said_by(rng)]
        sends = services[1].handle(now_s, conn, said)
        digests[conn].add(sends)
        assert hosts[conn].say(now_s, said) == sends
        if rng.random() < 0.2:
            assert services[0].tick(now_s + 0.5) == services[1].tick(now_s + 0.5)
        assert list(services[0].flows(99)) == list(services[1].flows(99))
    assert services[0].status() == services[1].status()
    assert [(each.digest.count, each.digest.sum) for each in hosts] == [(each.count, each.sum) for each in digests]
    assert sum(each.renewed for each in hosts) > 10
    assert not hosts[0].renewed, "its elephants cannot move"


def test_a_renewal_never_reaches_python_until_a_decision_changes_its_path() -> None:
    service = a_service(Options())
    host = Native(service, 1)
    peer = address(TOPOLOGY, 5)
    begun = next(said for conn, said in service.handle(0.0, 1, [Announce(1, peer, 1)]) if conn == 1)
    for number in range(2, 5):
        answer = host.say(0.0, [Release(number - 1), Announce(number, peer, 1)])
        assert answer == [(1, msgspec.structs.replace(begun, generation=number, id=number))]
    assert host.renewed == 3
    (flow,) = service.flows(1)
    service.link(1.0, links_named(TOPOLOGY, flow["path"][1]), up=False)
    host.say(2.0, [Release(4), Announce(5, peer, 1)])
    assert host.renewed == 4, "the host was told of its new path, and renews on that"
    assert next(service.flows(1))["path"] != flow["path"]


def test_a_pair_that_waits_for_its_ports_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "_BATCH", 0)
    service = a_service(Options())
    host = Native(service, 1)
    peer = address(TOPOLOGY, 5)
    host.say(0.0, [Announce(1, peer, 1)])
    service.connect(1.0, HOSTS, hello(TOPOLOGY, 5, instance=1))
    assert service.busy
    host.say(2.0, [Release(1), Announce(2, peer, 1)])
    assert not host.renewed
    host.say(3.0, [Release(2), Announce(3, peer, 1)])
    assert host.renewed == 1, "Python has looked them up"


@pytest.mark.parametrize("said", ["fixed", "paths"])
def test_elephants_that_cannot_move_and_hosts_that_are_told_paths_are_left_to_python(said: str) -> None:
    peer = address(TOPOLOGY, 5)
    service = a_service(Options())
    service.connect(0.0, HOSTS, hello(TOPOLOGY, 0, instance=1, **{said: True}))
    host = Native(service, HOSTS)
    host.say(0.0, [Announce(1, peer, 1)])
    answer = host.say(0.0, [Release(1), Announce(2, peer, 1)])
    assert not host.renewed
    assert [bool(message.paths) for _, message in answer if isinstance(message, Assign)] == [said == "paths"]


def test_forecasts_are_left_to_python() -> None:
    assert a_service(Options(forecast=True)).elephants_of(1) is None


def test_lines_beyond_the_rate_and_after_unfinished_ones_are_left_to_python() -> None:
    service = a_service(Options())
    host = Host(10.0, 3.0, MAX_HOST_LINE, 0.0)
    host.serve(service.elephants_of(1))
    ping, done = to_line(Ping(1)), Done(False)
    assert host.answer(1, ping, 0.0, done) == (ping, b""), "Python may hold something"
    host.is_clear = True
    assert host.answer(1, 3 * ping, 0.0, done) == (ping, 2 * to_line(Pong(1))), (
        "a third one leaves no room for two more"
    )
    assert not host.is_clear
    host.is_clear = True
    assert host.answer(1, ping + ping[:5], 1.0, done) == (ping[:5], to_line(Pong(1)))
    assert not host.is_clear


def test_a_client_with_open_elephants_is_collected() -> None:
    class Owner(Pair):
        elephants_of: Elephants[Pair]

    elephants: Elephants[Pair] = Elephants()
    pair = Owner("10.0.0.1", 4791)
    pair.elephants_of = elephants
    elephants.put(7, pair, 100)
    alive = weakref.ref(pair)
    del elephants, pair
    gc.collect()
    assert alive() is None


def check(line: bytes) -> None:
    """Where native code reads a message, Python reads the same one."""
    read = fields(line)
    if read is None:
        return
    match message := from_host(line):
        case Release():
            assert read == ("release", message.id)
        case Ping():
            assert read == ("ping", message.nonce)
        case Announce():
            said = (message.id, message.peer, message.bytes, message.job, message.peer_port)
            assert read == ("announce", *said)
            assert message.port is None
        case _:
            raise AssertionError(f"{line!r} is no message for native code")


values = st.one_of(
    st.integers(-1, 70_000),
    st.sampled_from([2**63 - 1, 2**63, 0.5, 1e6, 1e7, 0.0, None, True, "a" * 39, "b" * 40, "c" * 64, "d" * 65]),
    st.text(max_size=3),
)
KEYS = ("id", "peer", "bytes", "job", "repeat_s", "peer_port", "port", "nonce", "other")


@given(
    kind=st.sampled_from(["release", "announce", "ping", "measured", "x"]),
    said=st.dictionaries(st.sampled_from(KEYS), values),
    form=st.sampled_from(["%b", " %b", "%b\r", "%b x", "%b}", "[%b]", "%b%b"]),
    indent=st.sampled_from([-1, 0, 2]),
)
@settings(max_examples=300, deadline=None)
def test_what_native_code_reads_python_reads_too(kind: str, said: dict[str, object], form: str, indent: int) -> None:
    line = msgspec.json.format(msgspec.json.encode({**said, "type": kind}), indent=indent).replace(b"\n", b"")
    check(form.encode().replace(b"%b", line))


@given(messages, st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_messages_are_read_as_python_reads_them(message: UsualMessage, data: st.DataObject) -> None:
    line = bytearray(to_line(message)[:-1])
    at = data.draw(st.integers(0, len(line) - 1))
    line[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    check(bytes(line))


ANNOUNCE = '{"type":"announce","id":1,"peer":"10.0.0.2","bytes":1'
READ = ("announce", 1, "10.0.0.2", 1, "", 4791)


@pytest.mark.parametrize("number", ["1", "0.5", "1e-3", "1E+2", "1000000", "null"])
def test_periods_are_read(number: str) -> None:
    assert fields(f'{ANNOUNCE},"repeat_s":{number}}}'.encode()) == READ


@pytest.mark.parametrize("number", ["0", "-1", "1.", ".5", "01", "1e", "1e999", "1e-999", "1000000.1", "nul", '"1"'])
def test_what_is_no_period_is_left_to_python(number: str) -> None:
    assert fields(f'{ANNOUNCE},"repeat_s":{number}}}'.encode()) is None


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("{}", None),
        (ANNOUNCE + "}", READ),
        (ANNOUNCE + ',"job":"ring","peer_port":5000}', ("announce", 1, "10.0.0.2", 1, "ring", 5000)),
        (ANNOUNCE + ',"port":null}', READ),
        (ANNOUNCE + ',"port":50000}', None),
        ('{"id":7,"type":"release"}', ("release", 7)),
        ('{"type":"ping"}', ("ping", 0)),
        ('{"type":"ping","nonce":9223372036854775807}', ("ping", 2**63 - 1)),
        ('{"type":"ping","nonce":9223372036854775808}', None),
        ('{"type":"ping","nonce":01}', None),
        ('{"type":"ping","nonce":1.0}', None),
        ('{"type":"ping","type":"ping"}', None),
        ('{"type":"ping","nonce":1,}', None),
        ('{"type":"p\\u0069ng"}', None),
        ('{"type":"release","id":1,"nonce":null}', None),
    ],
)
def test_usual_lines_are_read_and_others_are_left_to_python(line: str, read: tuple[object, ...] | None) -> None:
    assert fields(line.encode()) == read


def test_a_client_keeps_its_elephants_in_the_order_of_opening() -> None:
    service = a_service(Options())
    peers = [address(TOPOLOGY, host) for host in (4, 5)]
    host = Native(service, 1)
    for number, peer in ((1, 0), (2, 1), (3, 0)):
        host.say(0.0, [Announce(number, peers[peer], 10 * number)])
    host.say(1.0, [Release(1), Announce(4, peers[0], 40)])
    client: Client = next(client for client in service.clients if client.conn == 1)
    assert [(number, size) for number, (_, size) in client.open.items()] == [(2, 20), (3, 30), (4, 40)]
    host.say(2.0, [Release(4)])
    pair = client.open.items()[1][1][0]
    assert (pair.newest_id, pair.elephant_id(), pair.newest_id) == (None, 3, 3)
