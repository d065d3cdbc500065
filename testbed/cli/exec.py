# SPDX-License-Identifier: Apache-2.0
"""`paralet exec`: runs a program on a host or switch of a fabric that is up."""

import click

from testbed.cli.running_fabric import TAKES_WORDS, give, on_option


@click.command(context_settings=TAKES_WORDS, epilog="Example: sudo paralet exec h1 -- ping -c 3 h2")
@on_option
@click.argument("node")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def exec(on: str | None, node: str, program: tuple[str, ...]) -> int:
    """Run PROGRAM on the host or switch NODE of a fabric that `paralet run` or `paralet shell` has brought up.

    It gets this terminal, and its exit status is that of this command. Hosts know each other by name. Open vSwitch's
    tools reach the fabric's switches from any switch NODE, and vtysh a router.
    """
    words = program[1:] if program[0] == "--" else program
    if not words:
        raise click.UsageError("Missing argument 'PROGRAM...'.")
    return give(on, ["exec", node, *words])
