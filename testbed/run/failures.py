# SPDX-License-Identifier: Apache-2.0
"""What a program in the sandbox makes of errors: those of the fabric become the testbed's, and those an exit status."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from emul import FabricError
from emul.capture import CaptureError
from emul.layout import LayoutError
from emul.openflow_app import OpenFlowAppError
from emul.ovs import OvsError
from emul.relays import RelayError
from emul.rxe import RxeError
from emul.sandbox import SandboxError
from netmodel import SpecError
from testbed.errors import InputError, TestbedError, lines_of, sentence_of


@contextmanager
def fabric_errors(log_dir: Path) -> Iterator[None]:
    """Raises InputError when a topology cannot be laid out, and TestbedError, with the logs' folder, for other failures
    of the fabric."""
    try:
        yield
    except LayoutError as error:
        raise InputError(str(error)) from error
    except (CaptureError, OpenFlowAppError, FabricError, OvsError, RelayError, RxeError, SandboxError) as error:
        raise TestbedError(f"{error} (logs: {log_dir})") from error


def exit_status(work: Callable[[], None]) -> int:
    """Do the work and print its error to standard error: 0, 2 for a wrong input, or 1 for another failure."""
    try:
        work()
    except (InputError, SpecError) as error:
        print(lines_of(error), file=sys.stderr)
        return 2
    except TestbedError as error:
        print(lines_of(error), file=sys.stderr)
        return 1
    except OSError as error:
        print(lines_of(sentence_of(error)), file=sys.stderr)
        return 1
    return 0
