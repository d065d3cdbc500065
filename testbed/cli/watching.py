# SPDX-License-Identifier: Apache-2.0
"""Shows the view of `paralet run --watch` while a run goes on."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from netmodel.printable import printable
from testbed.cli import watch_screen


@contextmanager
def watching(spec_file: Path, journal: Path, log: Path) -> Iterator[None]:
    """While open, the view is on the terminal, from its first picture on. Ctrl-C in it is a SIGINT for this process.

    `journal` is the file in which the runner tells how far it has come. `log` has the run's progress, and is named when
    the user leaves the view.
    """
    ours, theirs = socket.socketpair()
    over = threading.Event()
    command = [sys.executable, "-m", watch_screen.__name__, str(spec_file), str(journal), str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, pass_fds=(theirs.fileno(),)) as view:
        theirs.close()
        ours.recv(1)  # empty if the view has ended

        def wait() -> None:
            status = view.wait()
            if over.is_set():
                return
            if status == watch_screen.INTERRUPTED:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                goes_on = f"paralet: the run goes on, with its progress in {log}; Ctrl-C ends it"
                print(printable(goes_on), file=sys.stderr)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        try:
            yield
        finally:
            over.set()
            ours.close()
            waiting.join()
