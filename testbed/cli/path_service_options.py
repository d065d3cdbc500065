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
    from sdn.path_service.channels import Channels
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


def tls_options(command: _Command) -> _Command:
    """Adds --tls-ca, --tls-certificate and --tls-key."""
    file = click.Path(path_type=Path, dir_okay=False)
    for name, help_text in (
        ("--tls-key", "The key of --tls-certificate, which only its owner may read."),
        ("--tls-certificate", "The certificate of this service, for the address of --listen. Give all three, or none."),
        (
            "--tls-ca",
            "Speak TLS 1.3 with hosts, and with --peer, whose certificates are from a CA in FILE (PEM). A host may "
            "speak for the IP addresses that its certificate is for, and for no others.",
        ),
    ):
        command = click.option(name, metavar="FILE", type=file, help=help_text)(command)
    return command


def channels_of(ca: Path | None, certificate: Path | None, key: Path | None) -> "Channels":
    """How hosts connect. Raises click.UsageError where one of the three is missing, and InputError for the files."""
    from sdn.path_service.channels import PlainChannels
    from sdn.path_service.tls import TlsChannels, TlsError, TlsFiles

    if ca is None and certificate is None and key is None:
        return PlainChannels()
    if ca is None or certificate is None or key is None:
        raise click.UsageError("--tls-ca, --tls-certificate and --tls-key belong together: give all three, or none")
    try:
        return TlsChannels(TlsFiles(ca, certificate, key))
    except TlsError as error:
        raise InputError(str(error)) from error


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
