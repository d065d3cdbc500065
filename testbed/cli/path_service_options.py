# SPDX-License-Identifier: Apache-2.0
"""Options that all commands of `paralet path-service` share, and the errors of asking a running service."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from testbed.cli.extras import require
from testbed.errors import InputError, TestbedError

if TYPE_CHECKING:
    from sdn.path_service.control.client import Operator

_Command = TypeVar("_Command", bound=Callable[..., Any])


def token_file_option(command: _Command) -> _Command:
    """Adds --token-file."""
    return click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        required=True,
        help="The token that authenticates hosts and operators; only its owner may read the file.",
    )(command)


def json_option(command: _Command) -> _Command:
    """Adds --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


@contextmanager
def operator_of(token_file: Path) -> Iterator["Operator"]:
    """The running path service. Raises InputError for the token file, TestbedError where the service refuses."""
    require("service", "paralet path-service")
    from sdn.path_service.admin import AdminError
    from sdn.path_service.control.client import Operator
    from sdn.path_service.token import TokenError

    try:
        yield Operator(token_file)
    except TokenError as error:
        raise InputError(str(error)) from error
    except AdminError as error:
        raise TestbedError(str(error)) from error
