# SPDX-License-Identifier: Apache-2.0
"""The group of all `paralet` commands: error handling, and imports of a command when it is used."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from errno import EACCES, EROFS
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from testbed.cli.extras import ENGINE, WITHOUT_ENGINE
from testbed.errors import InputError, TestbedError, lines_of, sentence_of

_NOT_WRITABLE = (EACCES, EROFS)
"""Errors of a file that the user has named, and may not write or read."""

_UNCUT = 1000
"""More characters than any first sentence has."""


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
        except _invalid_requests() as error:
            _end(error, 2)
        except TestbedError as error:
            _end(error, 1)
        except ModuleNotFoundError as error:
            if error.name != ENGINE:
                raise
            _end(WITHOUT_ENGINE, 2)
        except OSError as error:
            _end(sentence_of(error), 2 if error.errno in _NOT_WRITABLE and error.filename else 1)
        except (click.Abort, KeyboardInterrupt):
            _end("interrupted", 130)
        sys.exit(status if isinstance(status, int) else 0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands, each with the whole first sentence of its help: click's own cuts it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(ctx, name)) for name in self.list_commands(ctx)])

    def summary(self, ctx: click.Context, cmd_name: str) -> str:
        """The first sentence of a subcommand's help."""
        command = self.get_command(ctx, cmd_name)
        return "" if command is None else command.get_short_help_str(_UNCUT)


class LazyGroup(OneSentenceGroup):
    """A group that imports the module of a subcommand when the subcommand is used.

    `summaries` has the first sentence of each subcommand's help by its name. The module in `package` and the subcommand
    in it have the same name, with underscores. So no command waits for the imports of another one, and the list of
    commands waits for none.
    """

    def __init__(self, *args: Any, package: str, summaries: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._package = package
        self._summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all subcommands, sorted."""
        return sorted(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; None for an unknown name."""
        if cmd_name not in self._summaries:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"{self._package}.{name}"), name)
        return command

    def summary(self, ctx: click.Context, cmd_name: str) -> str:
        """The first sentence of a subcommand's help, from the table."""
        return self._summaries[cmd_name]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of subcommands and options that begin with `incomplete`. click's own imports the subcommands."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self.summary(ctx, name)) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def _invalid_requests() -> tuple[type[Exception], ...]:
    """InputError, and netmodel's SpecError if a command has read YAML: otherwise its packages may be missing."""
    yaml_source = sys.modules.get("netmodel.yaml_source")
    return (InputError,) if yaml_source is None else (InputError, yaml_source.SpecError)


def _end(error: Exception | str, status: int) -> NoReturn:
    click.echo(lines_of(error), err=True)
    sys.exit(status)
