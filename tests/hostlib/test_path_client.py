# SPDX-License-Identifier: Apache-2.0
"""The path client against a path service in the test: announcements, ports of lanes, and delivery of every message
whatever the service does."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostlib import Device, Faults, stats
from tests.ports import free_ports

from .conftest import DEADLINE_S, A, B, Pair, join
from .path_service import TOKEN, Message, PathService, eventually

LANES = 4
# A busy machine delays packets more than a network does. No lane may leave its port because of that.
COMMON: dict[str, Any] = {"lanes": LANES, "target_queue_s": 0.02, "min_timeout_s": 2.0}
MIB = 2**20


@pytest.fixture
def first() -> list[int]:
    """A source port for each lane."""
    return free_ports(LANES)


@pytest.fixture
def second() -> list[int]:
    """Others."""
    return free_ports(LANES)


@pytest.fixture
def service() -> Iterator[PathService]:
    with PathService() as service:
        yield service


@pytest.fixture
def make(service: PathService) -> Iterator[Callable[..., Pair]]:
    """Make pairs of devices, closed after the test. The first device is connected to the service."""
    with ExitStack() as stack:

        def make(two: dict[str, Any] | None = None, **options: Any) -> Pair:
            controlled = {"policy": "controller", "path_service": service.address, "token": TOKEN}
            one = stack.enter_context(Device(A, **{**COMMON, **controlled, **options}))
            pair = join(one, stack.enter_context(Device(B, **{**COMMON, **(two or {})})))
            eventually(lambda: state(pair)["connected"], "never connected to the service")
            return pair

        yield make


def state(pair: Pair) -> dict[str, Any]:
    counters: dict[str, Any] = pair.one.counters()["path_client"]
    return counters


def live_counters(pair: Pair) -> dict[str, Any]:
    """The same counters as other processes see them."""
    (process,) = stats.survey([os.getpid()]).processes
    (seen,) = [device.path_client for device in process.devices if device.address == A]
    assert seen is not None
    return {**asdict(seen), "elephants": seen.announced - seen.released}


def ports(pair: Pair) -> list[int]:
    return [lane["port"] for lane in pair.one.counters()["lanes"]]


def wait_for_ports(pair: Pair, expected: list[int]) -> None:
    eventually(lambda: ports(pair) == expected, lambda: f"lanes never took {expected}: {pair.one.counters()}")


def wait_until_left(pair: Pair, *lists: list[int]) -> None:
    named = {port for numbers in lists for port in numbers}
    eventually(lambda: not named & set(ports(pair)), lambda: f"lanes never left {lists}: {pair.one.counters()}")


def assigns(service: PathService, numbers: list[int], **more: Any) -> Callable[[Message], list[Message | bytes]]:
    """An `answer` that assigns these ports to every elephant."""

    def answer(message: Message) -> list[Message | bytes]:
        if message["type"] == "ping":
            return [{**message, "type": "pong"}]
        if message["type"] != "announce":
            return []
        return [service.assign(message["peer"], numbers, id=message["id"], **more)]

    return answer


def pushed(service: PathService, pair: Pair, numbers: list[int]) -> Message:
    """An assignment for the second device without an announcement."""
    return service.assign(B, numbers, peer_port=pair.two.udp_port)


def start(pair: Pair, message: bytes) -> Callable[[], None]:
    """Start a message. The returned function waits for it and checks its content."""
    buffer = bytearray(len(message))
    receiving = pair.back.recv(buffer)
    sending = pair.to.send(message)

    def finish() -> None:
        assert sending.wait(DEADLINE_S) == len(message)
        assert receiving.wait(DEADLINE_S) == len(message)
        assert buffer == message

    return finish


def test_hello_identifies_the_device(service: PathService, make: Callable[..., Pair]) -> None:
    make()
    make()
    one, other = service.received("hello", 2)
    assert {key: one[key] for key in ("version", "token", "device", "lanes")} == {
        "version": 2,
        "token": TOKEN,
        "device": A,
        "lanes": LANES,
    }
    assert re.fullmatch("[0-9a-f]{16}", one["instance"])
    assert one["instance"] != other["instance"]


def test_an_elephant_is_announced_gets_its_ports_and_is_released(
    service: PathService, make: Callable[..., Pair], first: list[int]
) -> None:
    pair = make(job="bert")
    service.answer = assigns(service, first)
    data = os.urandom(4 * MIB)
    assert pair.exchange(data) == data
    announce = service.received("announce")[0]
    assert (announce["peer"], announce["bytes"], announce["job"]) == (B, len(data), "bert")
    assert "repeat_s" not in announce
    wait_for_ports(pair, first)
    assert service.received("release")[0]["id"] == announce["id"]
    # A repeated message starts on the same ports.
    assert ports(pair) == first
    assert pair.exchange(data) == data
    assert service.received("announce", 2)[1]["id"] != announce["id"]
    service.received("release", 2)
    counted = state(pair)
    assert counted | {"assigns": 2, "pushes": 0, "elephants": 0, "reverted": 0, "invalid": 0, "stale": 0} == counted
    assert counted | {"announced": 2, "assigned": 2, "released": 2} == counted
    assert counted["ecmp_starts"] == 1  # the second one started on its assigned ports
    assert counted["connected"]
    assert counted["since_s"] <= time.monotonic()
    # Live counters agree.
    eventually(
        lambda: live_counters(pair) == pytest.approx(state(pair)),
        lambda: f"live counters {live_counters(pair)} differ from {state(pair)}",
    )


def test_mice_are_not_announced_and_consecutive_small_messages_are(
    service: PathService, make: Callable[..., Pair]
) -> None:
    pair = make(elephant_bytes=512 * 1024, mice_bytes=8192)
    for _ in range(128):
        pair.exchange(bytes(8192))  # 1 MiB in mice
    assert pair.exchange(bytes(100_000)) == bytes(100_000)
    assert state(pair)["announces"] == 0
    finish = [start(pair, os.urandom(100_000)) for _ in range(16)]
    for each in finish:
        each()
    announces = service.received("announce")
    assert 512 * 1024 <= announces[0]["bytes"] < 2 * MIB
    assert {message["id"] for message in announces} == {announces[0]["id"]}


def test_a_growing_elephant_is_announced_again_with_the_same_id(
    service: PathService, make: Callable[..., Pair]
) -> None:
    pair = make(elephant_bytes=MIB)
    finish = [start(pair, bytes(MIB)) for _ in range(8)]
    for each in finish:
        each()
    announces = service.received("announce", 4)
    assert [message["bytes"] for message in announces[:4]] == [MIB, 2 * MIB, 4 * MIB, 8 * MIB]
    assert len({message["id"] for message in announces[:4]}) == 1


def test_idle_lanes_take_ports_assigned_without_an_elephant(
    service: PathService, make: Callable[..., Pair], first: list[int], second: list[int]
) -> None:
    pair = make()
    before = ports(pair)
    service.push(pushed(service, pair, first))
    wait_for_ports(pair, first)
    service.push(service.assign("127.0.0.3", second))  # an unknown peer
    # An elephant's own assignment takes precedence while it is open; afterwards the other one is valid again.
    service.answer = assigns(service, second)
    finish = start(pair, os.urandom(4 * MIB))
    finish()
    service.received("release")
    wait_for_ports(pair, first)
    # Back to ECMP.
    service.push(pushed(service, pair, []))
    wait_until_left(pair, first, second)
    assert ports(pair) == before


def test_fewer_ports_than_lanes_repeat(service: PathService, make: Callable[..., Pair], first: list[int]) -> None:
    pair = make()
    service.push(pushed(service, pair, first[:3]))
    wait_for_ports(pair, [*first[:3], first[0]])


def test_a_later_peer_starts_on_its_assigned_ports(
    service: PathService, make: Callable[..., Pair], second: list[int]
) -> None:
    pair = make()
    with Device("127.0.0.3", **COMMON) as late:
        service.push(service.assign("127.0.0.3", second, peer_port=late.udp_port))
        eventually(lambda: state(pair)["assigns"] == 1, "the assignment never arrived")
        other = join(pair.one, late)
        rows = [lane for lane in pair.one.counters()["lanes"] if lane["peer"] == "127.0.0.3"]
        eventually(lambda: [lane["port"] for lane in rows] == second, "the new peer's lanes took other ports")
        other.to.close()


def test_a_peer_is_an_address_and_a_udp_port(
    service: PathService, make: Callable[..., Pair], first: list[int], second: list[int]
) -> None:
    """Switches hash the destination port, and only the first process at an address has port 4791."""
    pair = make()
    with Device(B, **COMMON) as third:
        other = join(pair.one, third)
        service.push(pushed(service, pair, first), service.assign(B, second, peer_port=third.udp_port))
        wait_for_ports(pair, first + second)
        for each in (pair, Pair(pair.one, third, other.listener, other.to, other.back)):
            assert each.exchange(bytes(MIB)) == bytes(MIB)
            count = 1 if each is pair else 2
            assert service.received("announce", count)[-1].get("peer_port", 4791) == each.two.udp_port
        other.to.close()
    with Device(A, policy="controller", path_service=service.address, token=TOKEN) as device:
        hello = service.received("hello", 2)[1]
        assert hello.get("udp_port", 4791) == device.udp_port
        assert "protocol" not in hello
    with Device(A, backend="tcp", policy="controller", path_service=service.address, token=TOKEN):
        assert service.received("hello", 3)[2]["protocol"] == "tcp"


def test_new_ports_during_a_message_are_taken_between_flowlets(
    service: PathService, make: Callable[..., Pair], first: list[int], second: list[int]
) -> None:
    """Pacing makes the message last, so that many moves occur between its flowlets."""
    pair = make(line_rate_bps=400e6, flowlet_bytes=32768)
    service.answer = assigns(service, first)
    data = os.urandom(16 * MIB)
    finish = start(pair, data)
    elephant = service.received("announce")[0]["id"]
    wait_for_ports(pair, first)
    for numbers in [second, first] * 5:
        service.push(service.assign(B, numbers, id=elephant))
        wait_for_ports(pair, numbers)
    assert state(pair)["elephants"] == 1, "the message was over before the last push"
    finish()
    lanes = pair.one.counters()["lanes"]
    assert all(lane["moves"] >= 11 for lane in lanes)
    assert state(pair)["reverted"] == 0


def test_the_service_is_killed_and_restarted_during_a_message(
    service: PathService, make: Callable[..., Pair], first: list[int]
) -> None:
    pair = make(line_rate_bps=200e6)
    service.answer = assigns(service, first)
    finish = start(pair, os.urandom(16 * MIB))
    wait_for_ports(pair, first)
    service.stop()
    wait_until_left(pair, first)
    assert not state(pair)["connected"]
    service.start()
    # The open elephant is announced again with the same id and gets its ports back.
    announces = service.received("announce", 2)
    assert announces[0]["id"] == announces[1]["id"]
    wait_for_ports(pair, first)
    finish()


def test_repeated_restarts_of_the_service_lose_no_message(
    service: PathService, make: Callable[..., Pair], first: list[int]
) -> None:
    pair = make(line_rate_bps=1e9, reconnect_s=(0.001, 0.01))
    service.answer = assigns(service, first)
    data = os.urandom(4 * MIB)
    for round_number in range(20):
        finish = [start(pair, data) for _ in range(2)]
        seen = len(service.of_type("announce"))
        service.stop()
        eventually(lambda: not state(pair)["connected"], "the end of the connection was not detected")
        service.start()
        service.received("hello", round_number + 2)
        for each in finish:
            each()
        finish = [start(pair, data)]
        service.received("announce", seen + 1)
        finish[0]()
    wait_for_ports(pair, first)
    assert state(pair)["connections"] >= 21
    assert pair.one.counters()["messages"]["failed"] == 0


def test_without_a_service_messages_use_ecmp() -> None:
    with PathService() as service:
        nobody = service.address
    with Device(A, policy="controller", path_service=nobody, token=TOKEN, assign_wait_s=60) as one, Device(B) as two:
        pair = join(one, two)
        data = os.urandom(4 * MIB)
        assert pair.exchange(data) == data
        assert not state(pair)["connected"]


def test_a_new_elephant_waits_for_its_ports(service: PathService, make: Callable[..., Pair], first: list[int]) -> None:
    pair = make(assign_wait_s=DEADLINE_S)
    finish = start(pair, os.urandom(4 * MIB))
    elephant = service.received("announce")[0]["id"]
    assert pair.exchange(b"a mouse") == b"a mouse"  # other messages do not wait
    # The message arrives before its acknowledgement, with which the sender counts it.
    eventually(lambda: sum(lane["flowlets"] for lane in pair.one.counters()["lanes"]) == 1, "the mouse is counted")
    service.push(service.assign(B, first, id=elephant))
    finish()
    assert ports(pair) == first


def test_a_new_elephant_waits_for_a_limited_time(service: PathService, make: Callable[..., Pair]) -> None:
    pair = make(assign_wait_s=0.2)
    begin = time.monotonic()
    finish = start(pair, os.urandom(4 * MIB))
    finish()
    assert time.monotonic() - begin >= 0.2  # it did wait
    assert len(service.received("announce")) == 1


def test_a_waiting_elephant_starts_when_the_service_is_killed(service: PathService, make: Callable[..., Pair]) -> None:
    pair = make(assign_wait_s=1000.0)
    finish = start(pair, os.urandom(4 * MIB))
    service.received("announce")
    service.stop()
    finish()


def test_a_rate_limits_what_is_sent_to_the_peer(
    service: PathService, make: Callable[..., Pair], first: list[int]
) -> None:
    """Only a lower bound of the time is checked, because an upper bound depends on the machine's speed."""
    rate_bps = 100e6
    pair = make(flowlet_bytes=32768, assign_wait_s=DEADLINE_S)
    service.answer = assigns(service, first, rate_bps=rate_bps)
    data = os.urandom(2 * MIB)
    begin = time.monotonic()
    start(pair, data)()
    limited_s = time.monotonic() - begin
    # Payload without the burst of 4 ms and the last flowlet, which may be sent on credit.
    assert limited_s >= (8 * len(data) - 8 * 32768) / rate_bps - 0.004
    print(f"{8 * len(data) / limited_s / 1e6:.1f} Mbit/s of payload under a limit of {rate_bps / 1e6:.0f}")
    # null removes the limit during a message.
    elephant = service.received("announce")[0]["id"]
    service.received("release")
    service.answer = assigns(service, first, rate_bps=1e6)
    finish = start(pair, data)
    elephant = service.received("announce", 2)[1]["id"]
    eventually(lambda: state(pair)["assigns"] == 2, "no second assignment")
    service.push(service.assign(B, first, id=elephant, rate_bps=None))
    begin = time.monotonic()
    finish()
    assert time.monotonic() - begin < 8 * len(data) / 1e6 / 2


def test_elephants_are_measured(service: PathService, make: Callable[..., Pair]) -> None:
    pair = make(line_rate_bps=50e6)
    data = os.urandom(16 * MIB)
    finish = start(pair, data)
    elephant = service.received("announce")[0]["id"]
    measured = service.received("measured", 2)
    for message in measured:
        (flow,) = message["flows"]
        assert flow["id"] == elephant
        assert flow["seconds"] >= 0.9
        assert 0 < flow["bytes"] <= len(data)
        assert 0 < flow["rtt_s"] < DEADLINE_S
        assert flow["retransmits"] >= 0
    finish()


def test_the_period_of_repeated_elephants_is_announced(service: PathService, make: Callable[..., Pair]) -> None:
    """A busy machine may disturb the period, so the test repeats until one is announced."""
    pair = make()
    period_s = 0.8  # with a pause that ends the elephant

    def announced_periods() -> list[float]:
        begin = time.monotonic()
        pair.exchange(bytes(MIB))
        time.sleep(max(0.0, begin + period_s - time.monotonic()))
        return [message["repeat_s"] for message in service.of_type("announce") if "repeat_s" in message]

    periods = eventually(announced_periods, lambda: f"no period was found: {service.messages}")
    assert all("repeat_s" not in message for message in service.of_type("announce")[:3])
    assert periods[0] >= 0.8 * period_s


def test_a_lane_with_loss_leaves_its_port_and_tries_it_again(
    service: PathService, make: Callable[..., Pair], first: list[int]
) -> None:
    quick = {"target_queue_s": None, "min_timeout_s": None}
    faulty = {"faults": Faults(drop=0.05, seed=1), **quick}
    pair = make(two=faulty, flowlet_bytes=65536, revert_loss=0.01, **quick)

    def once(message: Message) -> list[Message | bytes]:
        return assigns(service, first)(message) if service.generation == 0 else []

    service.answer = once
    data = os.urandom(2 * MIB)

    def all_reported() -> bool:
        assert pair.exchange(data) == data
        return {report["lane"] for report in service.of_type("report")} == set(range(LANES))

    eventually(all_reported, "some lane never left its port")
    for report in service.of_type("report"):
        assert report["port"] == first[report["lane"]]
        assert report["reason"] == "loss"
        assert report["value"] > 0.01
    assert state(pair)["reverted"] >= LANES

    def reported_again() -> bool:
        assert pair.exchange(data) == data
        lanes = [report["lane"] for report in service.of_type("report")]
        return any(lanes.count(lane) > 1 for lane in lanes)

    eventually(reported_again, "no lane ever tried its port again")
    service.received("release")
    service.push(pushed(service, pair, first))
    wait_for_ports(pair, first)


def test_packets_lost_on_a_dead_path_are_retransmitted_when_the_lane_moves(
    service: PathService, make: Callable[..., Pair], first: list[int]
) -> None:
    """The second device drops everything and no timeout occurs in time: only the move causes retransmissions."""
    never = {"min_timeout_s": 1000.0, "retry_time_s": 10_000.0}
    service.answer = lambda message: [{**message, "type": "pong"}] if message["type"] == "ping" else []
    pair = make(two={"faults": Faults(drop=1.0), **never}, flowlet_bytes=MIB, **never)
    pair.back.recv(bytearray(4 * MIB))
    pair.to.send(bytes(4 * MIB))
    eventually(lambda: all(lane["tx_packets"] for lane in pair.one.counters()["lanes"]), "some lane sends nothing")
    for lane, port in enumerate(first):
        assert pair.one.set_port(B, lane, port)
    wait_for_ports(pair, first)

    def lanes() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pair.one.counters()["lanes"]
        return rows

    eventually(lambda: all(lane["retransmits"] for lane in lanes()), lambda: f"nothing was retransmitted: {lanes()}")
    assert not any(lane["timeouts"] for lane in lanes())
    pair.one.close()  # each connection by itself would wait 15 s for the peer to acknowledge that it is closed
    pair.two.close()


# -- a service that sends invalid messages -----------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
nearly_assigns = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("assign") | json_values,
        "peer": st.sampled_from([B, A, "127.0.0.3", "x"]) | json_values,
        "ports": st.lists(st.integers(49152, 65535), max_size=6) | st.lists(st.integers(), max_size=3) | json_values,
        "id": st.integers(0, 5) | json_values,
        "generation": st.integers(0, 100) | json_values,
        "rate_bps": st.none() | st.floats(1e9, 1e12) | json_values,
    },
)
others = st.fixed_dictionaries({"type": st.sampled_from(["welcome", "error", "pong", "ping", "assign", "hello"])})
lines = st.one_of(
    nearly_assigns.map(lambda value: json.dumps(value).encode()),
    others.map(lambda value: json.dumps(value).encode()),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=100),
)


def test_random_messages_do_no_harm(service: PathService, make: Callable[..., Pair], first: list[int]) -> None:
    pair = make(reconnect_s=(0.001, 0.002))
    data = os.urandom(2 * MIB)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(lines, min_size=1, max_size=5))
    def survive(garbage: list[bytes]) -> None:
        service.answer = lambda message: [line + b"\n" for line in garbage] if message["type"] == "announce" else []
        service.push(*[line + b"\n" for line in garbage])
        assert pair.exchange(data) == data

    survive()
    # A valid answer still works.
    eventually(lambda: state(pair)["connected"], "never connected again")
    assert state(pair)["invalid"] > 0
    service.generation = 2**62
    service.answer = assigns(service, first)
    eventually(lambda: pair.exchange(data) == data and ports(pair) == first, "never back on assigned ports")


@pytest.mark.parametrize(
    ("garbage", "connected"),
    [
        ({"ports": [50000, 4791]}, True),
        ({"ports": [50000, 65536]}, True),
        ({"ports": [50000, -1]}, True),
        ({"ports": [50000.5]}, True),
        ({"ports": "50000"}, True),
        ({"ports": [50000] * 1025}, True),
        ({"generation": None}, True),
        ({"id": "1"}, True),
        ({"rate_bps": 0}, True),
        ({"rate_bps": "fast"}, True),
        (b"nonsense\n", False),
        (b"[]\n", False),
        (b"[" * 500_000 + b"\n", False),
        (b"x" * (2**20 + 2), False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_message_reverts_lanes_to_ecmp(
    service: PathService, make: Callable[..., Pair], garbage: dict[str, Any] | bytes, connected: bool, first: list[int]
) -> None:
    pair = make(reconnect_s=(5.0, 5.0))
    service.push(pushed(service, pair, first))
    wait_for_ports(pair, first)
    service.push(garbage if isinstance(garbage, bytes) else {**pushed(service, pair, first), **garbage})
    wait_until_left(pair, first)
    assert state(pair)["connected"] is connected
    assert pair.exchange(b"still here") == b"still here"


def test_stale_assignments_are_ignored(
    service: PathService, make: Callable[..., Pair], first: list[int], second: list[int]
) -> None:
    pair = make()
    service.push({**pushed(service, pair, first), "generation": 10})
    wait_for_ports(pair, first)
    service.push(
        {**pushed(service, pair, second), "generation": 9}, {**service.assign(B, second, id=77), "generation": 11}
    )
    eventually(lambda: state(pair)["stale"] == 2, "not counted")
    assert ports(pair) == first
    service.push({**pushed(service, pair, second), "generation": 10})
    wait_for_ports(pair, second)


def test_an_announcement_is_repeated_after_a_busy_error(
    service: PathService, make: Callable[..., Pair], first: list[int]
) -> None:
    pair = make(line_rate_bps=50e6)
    refusals = 0

    def answer(message: Message) -> list[Message | bytes]:
        nonlocal refusals
        if message["type"] != "announce":
            return []
        refusals += 1
        if refusals == 1:
            return [{"type": "error", "code": "busy", "text": "ask later"}]
        return assigns(service, first)(message)

    service.answer = answer
    finish = start(pair, os.urandom(16 * MIB))
    announces = service.received("announce", 2)
    assert announces[0] == announces[1]
    assert state(pair)["connections"] == 1  # the error has not ended it; a service that a busy machine stops may later
    wait_for_ports(pair, first)
    finish()
