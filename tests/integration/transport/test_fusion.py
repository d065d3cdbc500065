# SPDX-License-Identifier: Apache-2.0
"""Two NICs as one device: when either link goes down, messages go on over the other, and lanes return afterwards."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from types import TracebackType

import pytest

from hostlib import Device

from .link import FAR, FAR_ADDRESS, MTU, NEAR, Link, near_address, run
from .stream import Stream

pytestmark = pytest.mark.sandboxed

NEAR_2 = "near2"
FAR_2 = "far2"
NEAR_2_ADDRESS = "10.98.0.1"
FAR_2_ADDRESS = "10.98.0.100"
LANES = 4
MESSAGE_BYTES = 200_000
TIMEOUT_S = 60.0
HOMES = [0, 1, 0, 1]
LONG_S = 6.5  # TCP gives a connection up after 5 seconds or the retry time


class TwoLinks(Link):
    """A second link between the same two namespaces."""

    def __init__(self) -> None:
        far = f"{FAR_ADDRESS}+{FAR_2_ADDRESS}"
        super().__init__(senders=1, lanes=LANES, connections=1, message_bytes=MESSAGE_BYTES, far_address=far)
        run("ip", "link", "add", NEAR_2, "mtu", str(MTU), "type", "veth", "peer", "name", FAR_2, "mtu", str(MTU))
        run("ip", "link", "set", FAR_2, "netns", str(self.sink_pid))
        run("ip", "address", "add", f"{NEAR_2_ADDRESS}/24", "dev", NEAR_2)
        run("ip", "link", "set", NEAR_2, "up")
        self.far("ip", "address", "add", f"{FAR_2_ADDRESS}/24", "dev", FAR_2)
        self.far("ip", "link", "set", FAR_2, "up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        # The kernel removes it with the sink's namespace too, but only a while after the sink has ended.
        subprocess.run(["ip", "link", "delete", NEAR_2], check=False, capture_output=True)

    def near_end(self, member: int, state: str) -> None:
        run("ip", "link", "set", (NEAR, NEAR_2)[member], state)

    def far_end(self, member: int, state: str) -> None:
        self.far("ip", "link", "set", (FAR, FAR_2)[member], state)


@pytest.fixture
def links() -> Iterator[TwoLinks]:
    with TwoLinks() as links:
        yield links


class Scene:
    """A stream of messages over both links."""

    def __init__(self, device: Device, handle: bytes) -> None:
        self._device = device
        self.stream = Stream(device.connect(handle), MESSAGE_BYTES)
        self.stream.start()
        self.wait_for(lambda: all(self.flowlets(member) > 10 for member in range(2)))

    def lanes(self) -> list[int]:
        """The member of every lane."""
        return [lane["member"] for lane in self._device.counters()["lanes"]]

    def flowlets(self, member: int) -> int:
        return sum(lane["flowlets"] for lane in self._device.counters()["lanes"] if lane["member"] == member)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + TIMEOUT_S
        while not condition() and time.monotonic() < until:
            assert self.stream.is_alive(), self.stream.failures
            time.sleep(0.01)
        assert condition(), self._device.counters()

    def goes_on(self) -> None:
        sent = self.stream.sent
        self.wait_for(lambda: self.stream.sent > sent + 20)

    def leaves(self, member: int) -> None:
        """All lanes go over the other member, and messages with them."""
        start = time.monotonic()
        self.wait_for(lambda: self.lanes() == [1 - member] * LANES)
        print(f"lanes left member {member} after {time.monotonic() - start:.2f} s")
        self.goes_on()

    def returns(self) -> None:
        start = time.monotonic()
        self.wait_for(lambda: self.lanes() == HOMES)
        print(f"lanes returned after {time.monotonic() - start:.2f} s")
        self.goes_on()


def open_device(retry_time_s: float = TIMEOUT_S) -> Device:
    address = f"{near_address(0)}+{NEAR_2_ADDRESS}"
    return Device(address, lanes=LANES, seed=1, min_timeout_s=0.05, retry_time_s=retry_time_s)


@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize("end", ["near", "far"])
def test_a_link_goes_down_and_comes_back(links: TwoLinks, member: int, end: str) -> None:
    set_link = links.near_end if end == "near" else links.far_end
    handle = links.open()
    with open_device() as device:
        scene = Scene(device, handle)
        set_link(member, "down")
        scene.leaves(member)
        set_link(member, "up")
        scene.returns()
        scene.stream.stop()
        assert device.counters()["messages"]["failed"] == 0


def test_one_link_is_down_longer_than_the_retry_time_and_then_the_other(links: TwoLinks) -> None:
    handle = links.open()
    with open_device(retry_time_s=2.0) as device:
        scene = Scene(device, handle)
        for member in (0, 1, 0):
            links.far_end(member, "down")
            scene.leaves(member)
            time.sleep(LONG_S)
            scene.goes_on()
            links.far_end(member, "up")
            scene.returns()
        scene.stream.stop()
        assert device.counters()["messages"]["failed"] == 0


def test_links_go_down_in_turn_without_waiting_for_lanes_to_return(links: TwoLinks) -> None:
    """The second goes down as soon as the first is up again: before any lane has returned."""
    handle = links.open()
    with open_device() as device:
        scene = Scene(device, handle)
        links.far_end(0, "down")
        scene.leaves(0)
        links.far_end(0, "up")
        links.far_end(1, "down")
        scene.leaves(1)
        links.far_end(1, "up")
        scene.returns()
        scene.stream.stop()


def test_a_member_without_a_path_is_not_used(links: TwoLinks) -> None:
    links.far_end(1, "down")
    handle = links.open()
    with open_device() as device:
        connection = device.connect(handle)
        for _ in range(20):
            assert connection.send(bytes(MESSAGE_BYTES)).wait(TIMEOUT_S) == MESSAGE_BYTES
        flowlets = [lane["flowlets"] for lane in device.counters()["lanes"] if lane["member"] == 1]
        assert flowlets == [0, 0]
