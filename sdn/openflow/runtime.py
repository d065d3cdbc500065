# SPDX-License-Identifier: Apache-2.0
"""How an OpenFlow app runs as a process: its events, its listener, its end.

Standard output carries one JSON object per line, an event; standard error is the log. SIGTERM and SIGINT end the
process with status 0. os-ken runs an app's handlers one after the other in one thread of its own, which ends silently
at the first exception. So `@guarded` reports exceptions of handlers, and the thread continues; what ends a thread
nevertheless is announced.
"""

import functools
import json
import logging
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from os_ken import cfg
from os_ken.base.app_manager import AppManager

from netmodel.printable import printable

LISTEN_ADDRESS = "127.0.0.1"
_LISTEN_TIMEOUT_S = 10.0
_LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
_log = logging.getLogger("sdn")

_App = TypeVar("_App")


def announce(event: str, **fields: object) -> None:
    """Write one event line to the standard output of the process, wherever `print` writes to."""
    assert sys.__stdout__ is not None
    sys.__stdout__.write(json.dumps({"event": event, **fields}) + "\n")
    sys.__stdout__.flush()


@contextmanager
def reported(handler: str) -> Iterator[None]:
    """Log and announce an exception of the block instead of raising it: one in the handler of this name."""
    try:
        yield
    except Exception as error:
        _log.exception("handler %s failed", printable(handler))
        announce("error", detail=f"handler {handler} failed: {error!r}")


def guarded(handler: Callable[[_App, Any], None]) -> Callable[[_App, Any], None]:
    """A handler whose exceptions are logged and announced instead of ending os-ken's event thread."""

    @functools.wraps(handler)
    def wrapper(app: _App, event: Any) -> None:
        with reported(handler.__name__):
            handler(app, event)

    return wrapper


def configure(port: int) -> AppManager:
    """os-ken's manager of apps, whose listener will listen on `port`.

    Raises ValueError for a port that there is none of, and OSError for one in use: os-ken's own listener thread would
    end without a report.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is not in 1..65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LISTEN_ADDRESS, port))
    cfg.CONF(
        args=["--ofp-tcp-listen-port", str(port), "--ofp-listen-host", LISTEN_ADDRESS], project="paralet", version=""
    )
    return AppManager.get_instance()


def run(program: str, start: Callable[[], int], take: Callable[[bytes], None]) -> int:
    """Run an app until a signal ends it. Returns the exit status of the process.

    `start` starts the app and returns the port on which os-ken is about to listen; where it raises ValueError or
    OSError the process says so in one sentence, and its status is 2. `take` is called with each line of standard input.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=_LOG_FORMAT, datefmt="%H:%M:%S")
    threading.excepthook = _thread_died
    stopping = _stop_signals()
    try:
        port = start()
        _await_listener(port)
    except (ValueError, OSError) as error:
        sys.stderr.write(printable(f"{program}: {error}") + "\n")
        return 2
    _log.info("listening on %s:%d", LISTEN_ADDRESS, port)
    announce("listening", port=port)
    _take_lines(take, stopping)
    _log.info("%s received, stopping", printable(signal.Signals(os.read(stopping, 1)[0]).name))
    return 0


def leave(status: int) -> None:
    """End the process. os-ken's listener and datapath threads are not daemons and would keep it alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _await_listener(port: int) -> None:
    """Wait until os-ken's listener thread listens. Raises OSError when it does not within _LISTEN_TIMEOUT_S.

    It reads the kernel's table of sockets, because os-ken would take a trial connection for a switch.
    """
    deadline = time.monotonic() + _LISTEN_TIMEOUT_S
    listening = re.compile(rf"^ *\d+: 0100007F:{port:04X} \S+ 0A ", re.MULTILINE)
    while not listening.search(Path("/proc/net/tcp").read_text()):
        if time.monotonic() > deadline:
            raise OSError(f"nothing listens on {LISTEN_ADDRESS}:{port} after {_LISTEN_TIMEOUT_S:.0f} s")
        time.sleep(0.01)


def _thread_died(arguments: threading.ExceptHookArgs) -> None:
    """Reports an uncaught exception in a thread of os-ken, which would end without a report."""
    _log.error("thread %s died", printable(arguments.thread), exc_info=arguments.exc_value)
    announce("error", detail=f"a thread of os-ken died: {arguments.exc_value!r}")


def _stop_signals() -> int:
    """A descriptor from which the number of each SIGTERM or SIGINT can be read.

    Signal masks and sigwait do not work here: threads that numpy starts when it is imported receive signals too.
    """
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    return read_end


def _take_lines(take: Callable[[bytes], None], stopping: int) -> None:
    """Pass lines from standard input on until `stopping` can be read."""
    waiting: list[int] = [stopping, 0]
    unread = b""
    while stopping not in (ready := select.select(waiting, [], [])[0]):
        if not (read := os.read(ready[0], 1 << 16)):
            waiting.remove(0)  # end of input: no more requests
        *lines, unread = (unread + read).split(b"\n")
        for line in lines:
            take(line)
