# SPDX-License-Identifier: Apache-2.0
"""`paralet capture`: packets at a port of a fabric that is up."""

import click

from testbed.cli.running_fabric import TAKES_WORDS, give, on_option


@click.command(
    context_settings=TAKES_WORDS, epilog="Example: sudo paralet capture leaf1:5 -w leaf1-5.pcap udp port 4791"
)
@on_option
@click.argument("port")
@click.argument("options", metavar="[OPTION]... [FILTER]...", nargs=-1, type=click.UNPROCESSED)
def capture(on: str | None, port: str, options: tuple[str, ...]) -> int:
    """Show the packets at PORT of a fabric that is up, as tcpdump does, until Ctrl-C.

    PORT is a switch's, such as leaf1:5, or a host's, such as h1:1. The other words are tcpdump's: with `-w FILE` the
    packets go to a file, with `-c 10` it ends after ten, and a filter follows. Wireshark shows what is in the packets
    of RoCEv2: `paralet capture leaf1:5 -w - | wireshark -k -i -`.
    """
    return give(on, ["capture", port, *options])
