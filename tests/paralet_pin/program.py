# SPDX-License-Identifier: Apache-2.0
"""A program of somebody else's, for the tests of `paralet pin`: connects to a server as it is told, and prints how.

Runs as a process of its own: `program.py WHAT ADDRESS PORT [ARGUMENTS]`. Prints JSON.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

Where = tuple[str, int]
MAGIC, REQUEST_BYTES = 0x70696E03, 184  # agent_protocol.hpp


def connected(where: Where, kind: int = socket.SOCK_STREAM) -> socket.socket:
    made = socket.socket(type=kind)
    made.connect(where)
    return made


def several(where: Where, count: str = "3") -> object:
    kept = [connected(where) for _ in range(int(count))]
    return [own.getsockname()[1] for own in kept]


def threads(where: Where, count: str = "3") -> object:
    kept: list[socket.socket] = []
    running = [threading.Thread(target=lambda: kept.append(connected(where))) for _ in range(int(count))]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return sorted(own.getsockname()[1] for own in kept)


def family(where: Where) -> object:
    """A forked child, a program that it starts, and this process, each with one connection at the same time."""
    first = connected(where)
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        own = connected(where)
        os.close(out)
        words = [sys.executable, __file__, "several", where[0], str(where[1]), "1"]
        ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        os.write(into, json.dumps([own.getsockname()[1], *json.loads(ran.stdout)]).encode())
        os._exit(0)
    os.close(into)
    ports = json.loads(os.read(out, 4096))
    os.waitpid(child, 0)
    return [first.getsockname()[1], *ports]


def closes_all(where: Where) -> object:
    """Closes all descriptors that it does not know, as daemons do."""
    first = connected(where)
    os.closerange(first.fileno() + 1, 4096)
    second = connected(where)
    return [own.getsockname()[1] for own in (first, second)]


def own_children(_: Where) -> object:
    """How many children and threads a program finds that it has not started."""
    try:
        os.waitpid(-1, os.WNOHANG)
        children = 1
    except ChildProcessError:
        children = 0
    return [children, len(os.listdir("/proc/self/task")) - 1, sorted(map(int, os.listdir("/proc/self/fd")))[:4]]


def datagrams(where: Where) -> object:
    unconnected = socket.socket(type=socket.SOCK_DGRAM)
    unconnected.sendto(b"x", where)
    unconnected.sendto(b"y", where)
    with_message = socket.socket(type=socket.SOCK_DGRAM)
    with_message.sendmsg([b"z"], [], 0, where)
    kept = [unconnected, with_message, connected(where, socket.SOCK_DGRAM)]
    return [own.getsockname()[1] for own in kept]


def refused(where: Where) -> object:
    """The ports of two connections, one after the other, to a port at which nobody listens."""
    with socket.socket() as nobody:
        nobody.bind((where[0], 0))
        ports = []
        for _ in range(2):
            with socket.socket() as own:
                assert own.connect_ex(nobody.getsockname()) == errno.ECONNREFUSED
                ports.append(own.getsockname()[1])
    return ports


def refused_threads(where: Where, count: str = "6") -> object:
    """The port of a connection to a port at which nobody listens, after one of each of so many threads."""
    with socket.socket() as nobody:
        nobody.bind((where[0], 0))
        together = threading.Barrier(int(count))

        def connect() -> None:
            together.wait()  # a thread that has ended may give its number to the next one
            with socket.socket() as own:
                assert own.connect_ex(nobody.getsockname()) == errno.ECONNREFUSED
            together.wait()

        running = [threading.Thread(target=connect) for _ in range(int(count))]
        for each in running:
            each.start()
        for each in running:
            each.join()
        time.sleep(0.1)
        with socket.socket() as own:
            assert own.connect_ex(nobody.getsockname()) == errno.ECONNREFUSED
            return own.getsockname()[1]


def refused_by_another_thread(where: Where) -> object:
    """The port of a connection to a port at which nobody listens, after one of another thread."""
    with socket.socket() as nobody:
        nobody.bind((where[0], 0))

        def connect() -> int:
            with socket.socket() as own:
                assert own.connect_ex(nobody.getsockname()) == errno.ECONNREFUSED
                return int(own.getsockname()[1])

        other = threading.Thread(target=connect)
        other.start()
        other.join()
        return connect()


def retries(where: Where) -> object:
    """The ports of a socket that is refused at first and then tries again, and of one that connects in between."""
    with socket.socket() as server, socket.socket() as refused, socket.socket() as between:
        server.bind((where[0], 0))
        assert refused.connect_ex(server.getsockname()) == errno.ECONNREFUSED
        server.listen()
        for each in (between, refused):
            each.connect(server.getsockname())
        return [each.getsockname()[1] for each in (refused, between)]


def retries_late(where: Where, refused_before: str) -> object:
    """The ports of a socket that waits for a full server until it is refused, and of one that connects before it again.

    The first one has been refused already, or does not block.
    """
    with socket.socket() as retries, socket.socket() as between, socket.socket() as fills:
        with socket.socket() as full:
            full.bind((where[0], 0))
            to = full.getsockname()
            if refused_before == "yes":
                assert retries.connect_ex(to) == errno.ECONNREFUSED
            else:
                retries.settimeout(50)
            full.listen(0)
            fills.bind(("127.0.0.1", 0))
            fills.getsockname()  # keeps its own port
            fills.connect(to)
            closing = threading.Timer(0.8, full.close)  # the agent looks every 0.5 s, TCP tries again after 1 s
            closing.start()
            assert retries.connect_ex(to) == errno.ECONNREFUSED
            closing.join()
        with socket.create_server(to):
            between.connect(to)
            if refused_before == "no":
                assert retries.connect_ex(to) == errno.ECONNABORTED  # Linux ends the first try only now
            retries.connect(to)
            return [each.getsockname()[1] for each in (retries, between)]


def refused_beside_time_wait(where: Where, planned: str) -> object:
    """The port of a refused connection, after one of another thread, at a port that a connection has in TIME_WAIT."""
    with socket.socket() as ended, socket.create_server((where[0], 0)) as server:
        ended.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ended.bind(("127.0.0.1", int(planned)))
        ended.connect(server.getsockname())
        accepted, _ = server.accept()
        ended.close()
        accepted.close()
    return refused_by_another_thread(where)


def unread(where: Where) -> object:
    """The ports of a connection and of one after it, between which a request comes whose program waits for no reply."""
    first = connected(where)
    addresses = [socket.inet_pton(socket.AF_INET6, f"::ffff:{address}") for address in ("127.0.0.1", where[0])]
    request = struct.pack("=IBBH16s16s", MAGIC, 0, 1, where[1], *addresses).ljust(REQUEST_BYTES, b"\0")
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(os.environ["PARALET_PIN_AGENT"])
        asking.shutdown(socket.SHUT_RD)
        asking.sendall(request)
    second = connected(where)
    return [own.getsockname()[1] for own in (first, second)]


def binds(where: Where) -> object:
    """Ports of sockets that bind any or one address without a port, and the two of one that asks for its port first."""
    anywhere, address, asks = (socket.socket() for _ in range(3))
    anywhere.bind(("", 0))
    address.bind(("127.0.0.1", 0))
    asks.bind(("127.0.0.1", 0))
    before = asks.getsockname()[1]
    for each in (anywhere, address, asks):
        each.connect(where)
    datagrams = socket.socket(type=socket.SOCK_DGRAM)
    datagrams.bind(("", 0))
    datagrams.sendto(b"x", where)
    without = [each.getsockname()[1] for each in (anywhere, address, datagrams)]
    return {"without": without, "before": before, "asks": asks.getsockname()[1]}


def inherits(_: Where, descriptor: str) -> object:
    """The port of a socket that this program was started with."""
    return socket.socket(fileno=int(descriptor)).getsockname()[1]


def shares(where: Where) -> object:
    """Ports of sockets that are bound without one: as another descriptor or program tells, and then their own."""
    ports = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for address in ("", "127.0.0.1"):
            copied, inherited = socket.socket(type=kind), socket.socket(type=kind)
            for each in (copied, inherited):
                each.bind((address, 0))
            with copied.dup() as other:
                ports.append([other.getsockname()[1], copied.getsockname()[1]])
            words = [sys.executable, __file__, "inherits", where[0], str(where[1]), str(inherited.fileno())]
            child = subprocess.run(words, stdout=subprocess.PIPE, check=True, pass_fds=[inherited.fileno()])
            ports.append([json.loads(child.stdout), inherited.getsockname()[1]])
    return ports


def leaves_out(where: Where) -> object:
    """Ports of a socket whose program asks for it late: before bind, after bind, and after connect."""
    own = socket.socket()
    own.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT of linux/in.h
    ports = [own.getsockname()[1]]
    own.bind(("127.0.0.1", 0))
    ports.append(own.getsockname()[1])
    own.connect(where)
    return [*ports, own.getsockname()[1]]


def listens(_: Where) -> object:
    """Whether a server that binds its address alone can be reached by the port that it has then."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    port = server.getsockname()[1]
    connected(("127.0.0.1", port)).close()
    return port > 0


def checked(where: Where) -> object:
    """What `paralet pin --check` says of this program."""
    kept = [connected(where) for _ in range(2)]
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    bound.getsockname()
    bound.connect(where)
    said = "\n".join(check(os.getpid(), "--json"))
    return {"ports": [own.getsockname()[1] for own in kept], "said": json.loads(said)}


def waits(where: Where) -> object:
    """What the agent says while a connection waits for its port, and after it."""
    import msgspec

    from paralet_pin import check

    agent = check.agent_of(os.getpid())
    waiting = threading.Thread(target=connected, args=(where,))
    waiting.start()
    said = check.ask(agent)
    while waiting.is_alive() and not said.waiting:
        said = check.ask(agent)
    waiting.join()
    return [msgspec.to_builtins(each) for each in (said, check.ask(agent))]


def many(where: Where, count: str = "1024") -> object:
    """How many of so many connections at one time have ports of their own, and of these have planned ones."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    with socket.create_server((where[0], 0), backlog=int(count)) as server:
        kept = [connected(server.getsockname()) for _ in range(int(count))]
        ports = {own.getsockname()[1] for own in kept}
        return [len(ports), sorted(port for port in ports if port >= 61000)]


def hangs(where: Where) -> object:
    """What `paralet pin --check` says of a connection, and of one whose SYN the server, whose queue is full, drops.

    Before and after the server is closed, which refuses the second one.
    """
    server = socket.create_server((where[0], 0), backlog=0)
    answered, silent = connected(server.getsockname()), socket.socket()
    silent.setblocking(False)
    assert silent.connect_ex(server.getsockname()) == errno.EINPROGRESS
    before = checked_until(lambda lines: any("hangs" in line for line in lines))
    server.close()
    select.select([], [silent], [], 50)
    assert silent.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
    after = checked_until(lambda lines: not any("hangs" in line for line in lines))
    return {"ports": [own.getsockname()[1] for own in (answered, silent)], "before": before, "after": after}


def checked_until(right: Callable[[list[str]], bool]) -> list[str]:
    """What `paralet pin --check` says of this program as soon as it is right, or after 50 s."""
    until = time.monotonic() + 50
    while not right(lines := check(os.getpid())) and time.monotonic() < until:
        time.sleep(0.5)
    return lines


def check(pid: int, *options: str) -> list[str]:
    words = [sys.executable, "-m", "testbed", "pin", "--check", str(pid), *options]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return ran.stdout.splitlines()


PROGRAMS: dict[str, Callable[..., object]] = {
    each.__name__: each
    for each in (
        several,
        threads,
        family,
        closes_all,
        own_children,
        datagrams,
        refused,
        refused_threads,
        refused_by_another_thread,
        retries,
        retries_late,
        refused_beside_time_wait,
        unread,
        binds,
        inherits,
        shares,
        leaves_out,
        listens,
        checked,
        many,
        hangs,
        waits,
    )
}

if __name__ == "__main__":
    what, address, port, *arguments = sys.argv[1:]
    print(json.dumps(PROGRAMS[what]((address, int(port)), *arguments)))
