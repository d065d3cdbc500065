# SPDX-License-Identifier: Apache-2.0
"""`soft` and TCP over a link between two network namespaces that loses packets, for `paralet bench stress`.

The near end is a sandbox, the far end a process in a second namespace (`lossy_link_main`). Both transports have the
same link, which leads through a third namespace. Its nftables forward packets from one side to the other and lose some
at random. As on NICs, segments are cut before the link and joined behind it (GRO): each loss is one packet, and packets
of both transports carry about 4 KiB. Both keep 8 messages under way: `soft` over 8
lanes of one connection, TCP over 8 flows with CUBIC and SACK, one message each. Every byte is compared. Timeouts are
the defaults.
"""

import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from emul import commands
from hostlib import Connection, Device
from testbed.bench.frame import Measurement
from testbed.bench.namespace import enter, network_namespace
from testbed.errors import TestbedError

LOSS = (0.0, 0.001, 0.01, 0.05)
FLOWS = 8
MESSAGE_BYTES = 256 << 10

_NEAR, _FAR = "10.97.0.1", "10.97.0.2"
_INTERFACES = "near", "far"
_MIDDLE = "middle-near", "middle-far"
_MTU = 4200
_SECONDS = 1.0
"""Seconds for which a measurement starts new messages."""

_TIMEOUT_S = 120.0
_PARTS = 1_000_000_000
_END = b"."
"""The last message of a measurement; shorter than all others."""


def loss_rules(loss: float) -> list[str]:
    """Lines for `nft -f` after which the middle namespace forwards packets and loses this part of them. Pure."""
    lines = ["add table netdev loss"]
    for came, leaves in (_MIDDLE, _MIDDLE[::-1]):
        lines += [
            f'add chain netdev loss {came} {{ type filter hook ingress device "{came}" priority 0; policy drop; }}',
            f"flush chain netdev loss {came}",
        ]
        if loss:
            lines.append(f"add rule netdev loss {came} numgen random mod {_PARTS} < {round(loss * _PARTS)} drop")
        lines.append(f'add rule netdev loss {came} fwd to "{leaves}"')
    return lines


def measurements(repetitions: int) -> Iterator[Measurement]:
    """Both transports in turn at every loss rate. Needs a sandbox. Raises TestbedError and FabricError."""
    with network_namespace() as middle, _far_end(middle) as ask:
        for seed in range(repetitions):
            message = _message(seed)
            for loss in LOSS:
                commands.run([*enter(middle), "nft", "-f", "-"], loss_rules(loss))
                ours, peer = (
                    _goodput_gbps(ask, f"{kind} {seed}", send, message)
                    for kind, send in (("soft", _send_soft), ("tcp", _send_tcp))
                )
                yield Measurement(
                    "goodput between namespaces", f"{100 * loss:g} % loss", "Gbit/s", ours, peer, f"TCP, {FLOWS} flows"
                )


def receive(kind: str, seed: int) -> int:
    """Receive the messages of a measurement at the far end: the number of them. Prints first where to connect.

    kind: "soft" or "tcp". Raises TestbedError when a message is wrong.
    """
    return (_receive_soft if kind == "soft" else _receive_tcp)(_message(seed))


def _message(seed: int) -> bytes:
    return random.Random(seed).randbytes(MESSAGE_BYTES)


def _goodput_gbps(
    ask: Callable[[str | None], str], command: str, send: Callable[[str, bytes], tuple[int, float]], message: bytes
) -> float:
    """Goodput until the last message has arrived. Raises TestbedError."""
    sent, seconds = send(ask(command), message)
    if (arrived := int(ask(None))) != sent:
        raise TestbedError(f"{command}: {arrived} of {sent} messages arrived")
    return sent * len(message) * 8 / seconds / 1e9


@contextmanager
def _far_end(middle: int) -> Iterator[Callable[[str | None], str]]:
    """The process at the far end of the link, which is laid: a function that exchanges lines with it.

    The function sends a line, if it is not None, and returns the next line of the answer.
    """
    argv = ["unshare", "--net", sys.executable, "-m", "testbed.bench.lossy_link_main", "far"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as far:
        assert far.stdin is not None  # they are pipes
        assert far.stdout is not None
        try:
            if far.stdout.readline() != "ready\n":
                raise TestbedError("the far end does not start")
            _lay_link(middle, far.pid)

            def ask(line: str | None) -> str:
                if line is not None:
                    print(line, file=far.stdin)
                answer = far.stdout.readline() if far.stdout is not None else ""
                if not answer:
                    raise TestbedError("the far end has ended")
                return answer.strip()

            yield ask
        finally:
            far.kill()


def _lay_link(middle: int, far: int) -> None:
    """Make the interfaces of the three namespaces, of which two are those of processes. Raises FabricError."""
    for interface, between, address, namespace in zip(_INTERFACES, _MIDDLE, (_NEAR, _FAR), (None, far), strict=True):
        end = "" if namespace is None else f" netns {namespace}"
        pair = f"link add {between} mtu {_MTU} netns {middle} type veth peer name {interface} mtu {_MTU}{end}"
        commands.batch("ip", [pair])
        commands.batch("ip", [f"link set {between} up"], enter(middle))
        prefix = [] if namespace is None else enter(namespace)
        commands.batch("ip", [f"address add {address}/24 dev {interface}", f"link set {interface} up"], prefix)
        offloads = ["tso", "off", "tx-udp-segmentation", "off", "gro", "on"]
        commands.run([*prefix, "ethtool", "-K", interface, *offloads])


def _send_soft(handle: str, message: bytes) -> tuple[int, float]:
    """Send messages to a far device; their number and the time until the last had arrived."""
    with Device(_NEAR, lanes=FLOWS) as device:
        connection = device.connect(bytes.fromhex(handle), _TIMEOUT_S)
        begin = time.monotonic()
        under_way = [connection.send(message) for _ in range(FLOWS)]
        sent = FLOWS
        while under_way:
            under_way.pop(0).wait(_TIMEOUT_S)
            if time.monotonic() - begin < _SECONDS:
                under_way.append(connection.send(message))
                sent += 1
        seconds = time.monotonic() - begin
        connection.send(_END).wait(_TIMEOUT_S)
    return sent, seconds


def _receive_soft(expected: bytes) -> int:
    """Receive until the last message. Prints the handle first. The number of messages; raises TestbedError."""
    with Device(_FAR, lanes=FLOWS) as device:
        listener = device.listen()
        print(listener.handle.hex(), flush=True)
        return _received(listener.accept(_TIMEOUT_S), expected)


def _received(connection: Connection, expected: bytes) -> int:
    buffers = [bytearray(len(expected)) for _ in range(FLOWS)]
    under_way = [(connection.recv(buffer), buffer) for buffer in buffers]
    count = 0
    while True:
        request, buffer = under_way.pop(0)
        if request.wait(_TIMEOUT_S) == len(_END):
            return count
        _check(buffer, expected)
        count += 1
        under_way.append((connection.recv(buffer), buffer))


def _send_tcp(port: str, message: bytes) -> tuple[int, float]:
    """Send messages over all flows; their number and the time until the last had arrived."""
    with ExitStack() as stack:
        flows = [stack.enter_context(socket.create_connection((_FAR, int(port)), _TIMEOUT_S)) for _ in range(FLOWS)]
        sent = [0] * FLOWS
        begin = time.monotonic()

        def send(number: int) -> None:
            flows[number].setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            while time.monotonic() - begin < _SECONDS:
                flows[number].sendall(message)
                sent[number] += 1
            flows[number].shutdown(socket.SHUT_WR)
            flows[number].recv(1)  # the far end closes when it has read all

        _in_threads(send)
        return sum(sent), time.monotonic() - begin


def _receive_tcp(expected: bytes) -> int:
    """Receive until the end of all flows. Prints the port first. The number of messages; raises TestbedError."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((_FAR, 0), backlog=FLOWS))
        print(server.getsockname()[1], flush=True)
        flows = [stack.enter_context(server.accept()[0]) for _ in range(FLOWS)]
        counts = [0] * FLOWS

        def receive(number: int) -> None:
            buffer = bytearray(len(expected))
            while flows[number].recv_into(buffer, 0, socket.MSG_WAITALL):
                _check(buffer, expected)
                counts[number] += 1

        _in_threads(receive)
        return sum(counts)


def _in_threads(work: Callable[[int], None]) -> None:
    """Call `work` with the number of every flow, in a thread each. Raises what one of them raises."""
    errors: list[Exception] = []

    def run(number: int) -> None:
        try:
            work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(FLOWS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _check(buffer: bytearray, expected: bytes) -> None:
    """Raises TestbedError unless `buffer` holds the message. Clears its start for the next message."""
    if buffer != expected:
        raise TestbedError("a message arrived corrupted")
    buffer[:4096] = bytes(4096)
