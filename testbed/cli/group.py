# SPDX-License-Identifier: Apache-2.0
"""Error handling of all `paralet` commands: a one-sentence message on standard error and an exit status."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from netmodel import SpecError
from testbed.errors import InputError, TestbedError, lines_of, sentence_of


class OneSentenceGroup(click.Group):
    """Prints errors in one line, then exits. Exit status: 2 for invalid input, 1 for failures, 130 for Ctrl-C."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line. As in click, this exits the process unless `standalone_mode` is false."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            status = super().main(args, prog_name or self.name, complete_var, standalone_mode=False, **extra)
        except click.UsageError as error:
            hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx is not None else ""
            _end(f"{error.format_message().rstrip('.')}{hint}", 2)
        except click.ClickException as error:
            _end(error.format_message(), error.exit_code)
        except (InputError, SpecError) as error:
            _end(error, 2)
        except TestbedError as error:
            _end(error, 1)
        except OSError as error:
            _end(sentence_of(error), 1)
        except (click.Abort, KeyboardInterrupt):
            _end("interrupted", 130)
        sys.exit(status if isinstance(status, int) else 0)


def _end(error: Exception | str, status: int) -> NoReturn:
    click.echo(lines_of(error), err=True)
    sys.exit(status)
