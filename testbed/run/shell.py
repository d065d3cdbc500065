# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.run.shell`: a fabric with a prompt, inside the sandbox that `paralet shell` has made."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from emul import sandbox
from testbed.run.bring_up import bare_fabric
from testbed.run.console import prompt
from testbed.run.console.console import FabricConsole
from testbed.run.console.service import ConsoleService
from testbed.run.console.wire import Greeting
from testbed.run.failures import exit_status, fabric_errors
from testbed.spec import load_bare

COMMAND_FAILED = 3
"""Exit status where the fabric came up and a command from a file or pipe failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Prints errors to standard error. Returns 0, 2 for a wrong input, 1 for another failure of the
    fabric, or `COMMAND_FAILED`."""
    parser = argparse.ArgumentParser(prog="python -m testbed.run.shell", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="spec or topology; its fabric is brought up")
    parser.add_argument("--log-dir", type=Path, required=True, help="folder for logs")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the prompt: the sandbox ends with this process
    failed: list[bool] = []

    def work() -> None:
        bare, log_dir = load_bare(arguments.spec), arguments.log_dir
        with fabric_errors(log_dir), bare_fabric(bare, log_dir) as fabric:
            console = FabricConsole(fabric, log_dir)
            greeting = Greeting(bare.name, bare.fabric, "shell", str(log_dir))
            with ConsoleService(console, greeting, sandbox.SCRATCH_DIR):
                failed.append(prompt.serve(console, bare.name))

    return exit_status(work) or (COMMAND_FAILED if any(failed) else 0)


if __name__ == "__main__":
    sys.exit(main())
