# SPDX-License-Identifier: Apache-2.0
"""The command `paralet`. Each subcommand has its own module. `main` is the entry point."""

import resource

import click

from testbed.cli.commands import COMMANDS
from testbed.cli.group import LazyGroup

__all__ = ["main"]

_MOST_FILES = 65_536
"""Open files that a command allows itself where the hard limit permits it: an experiment has several for each host.

The usual soft limit is 1,024. More than this would cost memory: programs that a command starts, such as FRR's daemons,
have tables with a place for every file that they may open.
"""


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from netmodel.printable import printable
    from testbed.provenance import commit, installed_version

    click.echo(printable(f"paralet {installed_version()} ({commit()})"))
    context.exit()


@click.group(
    name="paralet",
    cls=LazyGroup,
    package="testbed.cli",
    summaries=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Example: paralet run experiments/demo.yaml",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show version and commit, and exit.",
)
@click.pass_context
def main(context: click.Context) -> None:
    """ParaLet flowlets through an emulated fabric: run experiments, predict paths, measure.

    Exit status: 0 on success, 1 when something failed, 2 when the request itself is invalid.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MOST_FILES)), hard))
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
