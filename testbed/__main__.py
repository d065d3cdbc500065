# SPDX-License-Identifier: Apache-2.0
"""The entry point of `paralet` and `python -m testbed`. Ctrl-C never causes a traceback, even during imports."""

import signal


def main() -> None:
    """Run the command line of this process; see `testbed.cli`."""
    # The imports take half a second. A KeyboardInterrupt among them would end in a traceback, or be lost: extension
    # modules (numpy's) turn it into an ImportError. A parent that ignores Ctrl-C for us keeps that setting.
    early = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if early:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from testbed.cli import main as command_line

    if early:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line()


if __name__ == "__main__":
    main()
