# SPDX-License-Identifier: Apache-2.0
"""`paralet link`: changes links of a fabric that is up."""

import click

from testbed.cli.running_fabric import TAKES_WORDS, give, on_option


@click.command(
    context_settings=TAKES_WORDS, epilog="Examples: paralet link leaf1 spine1 down; paralet link h1:1 loss 5 %"
)
@on_option
@click.argument("link", metavar="PORT|NODE NODE", nargs=1)
@click.argument("words", metavar="CHANGE", nargs=-1, required=True, type=click.UNPROCESSED)
def link(on: str | None, link: str, words: tuple[str, ...]) -> int:
    """Change links of a fabric that is up: cut, mend or slow them, or let them lose, damage or delay packets.

    A port such as leaf1:5 names its link, or the packets that leave by it; two nodes name all links between them, or
    both directions. CHANGE is `down`, `up`, `rate 25 %`, or settings as in a spec's `links`, such as `loss 5 % delay 2
    ms`, which replace earlier ones; `clear` ends them. The runs of an experiment are then no longer those of its spec.
    """
    return give(on, ["link", link, *words])
