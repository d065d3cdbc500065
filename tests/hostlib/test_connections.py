# SPDX-License-Identifier: Apache-2.0
"""Connections open and close in any order, and their errors state why they ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from hostlib import ConnectionClosed, Device, DeviceError, TransportError

from .conftest import DEADLINE_S, A, B, Pair, join


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def test_a_handle_has_128_bytes_and_is_checked(pair: Pair) -> None:
    assert len(pair.listener.handle) == 128
    assert pair.to.peer == B
    assert pair.back.peer == A
    with pytest.raises(ValueError, match=r"^this is not a paralet handle: pass the listener's 128 bytes unchanged$"):
        pair.one.connect(bytes(128))
    with pytest.raises(ValueError, match="is not a paralet handle"):
        pair.one.connect(pair.listener.handle[:-1])


def test_a_wrong_token_is_refused(pair: Pair) -> None:
    forged = bytearray(pair.listener.handle)
    forged[40] ^= 1  # in the token
    with pytest.raises(TransportError, match=r"^127\.0\.0\.2 refused: nobody listens there any more"):
        pair.one.connect(bytes(forged))
    with Device("127.0.0.3") as stranger, pytest.raises(TransportError, match=r"^127\.0\.0\.2 refused: nobody listens"):
        stranger.connect(bytes(forged))


def test_connecting_to_a_closed_device_fails(pair: Pair) -> None:
    handle = pair.listener.handle
    pair.two.close()
    with Device("127.0.0.3") as late, pytest.raises(TransportError, match=r"^cannot connect to 127\.0\.0\.2: "):
        late.connect(handle)


def test_accept_times_out(pair: Pair) -> None:
    for timeout in (0, 0.02):
        with pytest.raises(TimeoutError, match=r"^no peer connected within timeout_s$"):
            pair.listener.accept(timeout)


def test_a_closed_listener_refuses_connections(pair: Pair) -> None:
    pair.listener.close()
    pair.listener.close()
    with pytest.raises(TransportError, match="refused: nobody listens there any more"):
        pair.one.connect(pair.listener.handle)
    assert pair.exchange(b"still here") == b"still here"


def test_many_connections_share_the_qps_of_their_peer(pair: Pair) -> None:
    more = [pair.one.connect(pair.listener.handle) for _ in range(31)]
    accepted = [pair.listener.accept(DEADLINE_S) for _ in range(31)]
    for device in (pair.one, pair.two):
        counters = device.counters()
        assert (counters["qps"], counters["peers"], counters["connections"]) == (4, 1, 32)
    for connection in more[::2] + accepted[1::2] + more[1::2] + accepted[::2]:
        connection.close()
    assert pair.exchange(b"last") == b"last"
    assert pair.one.counters()["connections"] == 1


def test_closing_fails_pending_requests_on_both_sides(pair: Pair) -> None:
    sending, receiving = pair.to.send(b"x" * 10), pair.to.recv(bytearray(10), 1)
    theirs = pair.back.recv(bytearray(10), 2)
    pair.to.close()
    pair.to.close()
    assert pair.to.closed
    assert not pair.back.closed
    for request in (sending, receiving):
        with pytest.raises(ConnectionClosed, match=r"^the connection was closed$"):
            request.wait(DEADLINE_S)
    for request in (theirs, pair.back.send(b"late"), pair.back.recv(bytearray(1))):
        with pytest.raises(ConnectionClosed, match=r"^127\.0\.0\.1 closed the connection$"):
            request.wait(DEADLINE_S)
    with pytest.raises(ConnectionClosed):
        pair.to.send(b"x").wait(DEADLINE_S)
    pair.back.close()


def test_a_connection_is_a_context_manager(pair: Pair) -> None:
    with pair.one.connect(pair.listener.handle) as connection:
        assert not connection.closed
    assert connection.closed


def test_calls_of_a_closed_device_fail(pair: Pair) -> None:
    pending = pair.back.recv(bytearray(1))
    mine = pair.to.recv(bytearray(1))
    pair.one.close()
    pair.one.close()
    for call in (
        pair.one.listen,
        lambda: pair.one.connect(pair.listener.handle),
        lambda: pair.one.register(bytearray(1)),
    ):
        with pytest.raises(DeviceError, match=r"^the device is closed$"):
            call()
    with pytest.raises(DeviceError, match=r"^the device is closed$"):
        pair.to.send(b"x").wait(DEADLINE_S)
    with pytest.raises(ConnectionClosed):
        mine.wait(DEADLINE_S)
    with pytest.raises(ConnectionClosed):
        pending.wait(DEADLINE_S)
    assert pair.one.counters()["lanes"] == []
    pair.to.close()


def test_a_closed_device_releases_its_ports() -> None:
    address = "127.0.0.77"  # not used by other tests
    with Device(address) as first, Device(address) as second:
        assert first.udp_port == 4791
        assert second.udp_port != 4791
        first.close()
        with Device(address) as third:
            assert third.udp_port == 4791


def test_accept_ends_when_the_device_closes(pair: Pair) -> None:
    closing = threading.Timer(0.05, pair.two.close)
    closing.start()
    with pytest.raises(DeviceError, match=r"^the device is closed$"):
        pair.listener.accept(DEADLINE_S)
    closing.join()


def test_idle_qps_are_dropped(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(idle_peer_s=0.05)
    pair.to.close()
    pair.back.close()
    assert eventually(lambda: pair.one.counters()["qps"] == 0 and pair.two.counters()["qps"] == 0)
    again = pair.one.connect(pair.listener.handle)
    assert pair.listener.accept(DEADLINE_S).peer == A
    again.close()


def test_a_device_may_connect_to_itself() -> None:
    with Device(A, lanes=2) as device:
        pair = join(device, device)
        assert pair.exchange(bytes(100_000)) == bytes(100_000)


@pytest.mark.parametrize(("mine", "theirs"), [(8, 2), (2, 8)])
def test_devices_with_different_numbers_of_lanes_communicate(
    make_pair: Callable[..., Pair], mine: int, theirs: int
) -> None:
    pair = make_pair(lanes=mine, two={"lanes": theirs})
    assert pair.one.counters()["qps"] == pair.two.counters()["qps"] == mine
    assert pair.exchange(bytes(range(256)) * 1000) == bytes(range(256)) * 1000


@pytest.mark.parametrize("waiting", ["request", "accept"])
def test_ctrl_c_ends_a_wait(pair: Pair, waiting: str) -> None:
    request = pair.back.recv(bytearray(1))
    main = threading.main_thread().ident
    assert main is not None
    interrupting = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        request.wait(DEADLINE_S) if waiting == "request" else pair.listener.accept(DEADLINE_S)
    interrupting.join()
    pair.to.send(b"x").wait(DEADLINE_S)  # the request is still valid
    assert request.wait(DEADLINE_S) == 1


def test_threads_share_a_connection(pair: Pair) -> None:
    failures: list[BaseException] = []

    def work(tag: int) -> None:
        try:
            for i in range(50):
                message = bytes([tag, i]) * (1 + 97 * i)
                assert pair.exchange(message, tag) == message
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
