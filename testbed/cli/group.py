# SPDX-License-Identifier: Apache-2.0
"""The group of all `paralet` commands: error handling, and imports of a command when it is used."""

import importlib
import sys
from collections.abc import Mapping, Sequence
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


class LazyGroup(OneSentenceGroup):
    """A group that imports the module of a subcommand when the subcommand is used.

    `modules` maps names of subcommands to modules. In its module a subcommand has the same name, with underscores. So
    no command waits for the imports of another one.
    """

    def __init__(self, *args: Any, modules: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all subcommands, sorted."""
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; None for an unknown name."""
        if cmd_name not in self._modules:
            return None
        module = importlib.import_module(self._modules[cmd_name])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


def _end(error: Exception | str, status: int) -> NoReturn:
    click.echo(lines_of(error), err=True)
    sys.exit(status)
