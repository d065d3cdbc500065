# SPDX-License-Identifier: Apache-2.0
"""The command `paralet`. Each subcommand has its own module. `main` is the entry point."""

from importlib.metadata import PackageNotFoundError, version

import click

from testbed.cli.group import LazyGroup

__all__ = ["main"]

_COMMANDS = (
    "bench",
    "cluster",
    "doctor",
    "export",
    "nccl",
    "papers",
    "path-service",
    "plan",
    "plugin",
    "predict",
    "report",
    "run",
    "stat",
    "sweep",
    "top",
)


def _version() -> str:
    try:
        return version("paralet")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"


@click.group(
    name="paralet",
    cls=LazyGroup,
    modules={name: f"testbed.cli.{name.replace('-', '_')}" for name in _COMMANDS},
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Example: paralet run experiments/demo.yaml",
)
@click.version_option(_version(), prog_name="paralet", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """ParaLet flowlets through an emulated fabric: run experiments, predict paths, measure.

    Exit status: 0 on success, 1 when something failed, 2 when the request itself is invalid.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
