# SPDX-License-Identifier: Apache-2.0
"""`paralet nccl`: the same as `python3 -m testbed.nccl`, which needs only Python."""

import click

from testbed.nccl.__main__ import main


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def nccl(options: tuple[str, ...]) -> int:
    """Run the real NCCL over the plugin and over its own sockets, on a GPU or without one."""
    try:
        return main(options, program="paralet nccl")
    except SystemExit as end:  # argparse has already printed the error
        return end.code if isinstance(end.code, int) else 1
