# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def topology_file(also: str = "") -> Callable[[_Command], _Command]:
    """--topology FILE, as `topology_file`; `also` is what its help says besides."""
    return click.option(
        "--topology",
        "topology_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        required=True,
        help=f"A topology, or an experiment spec that has one. {also}".rstrip(),
    )
