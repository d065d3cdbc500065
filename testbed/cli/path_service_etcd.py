# SPDX-License-Identifier: Apache-2.0
"""Options of `paralet path-service run` for services that share an etcd."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sdn.path_service.consensus.store import ConsensusStore

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """As given."""

    endpoints: str | None
    prefix: str
    ca: Path | None
    certificate: Path | None
    key: Path | None

    @property
    def is_given(self) -> bool:
        return self.endpoints is not None

    def store(self, name: str, lease_s: float) -> "ConsensusStore | None":
        """The store for the service that calls itself `name`. Raises UsageError and BadParameter."""
        files = {"--etcd-ca": self.ca, "--etcd-cert": self.certificate, "--etcd-key": self.key}
        given = [option for option, file in files.items() if file is not None]
        if self.endpoints is None:
            if given:
                raise click.UsageError(f"{given[0]} needs --etcd")
            return None
        from sdn.path_service.consensus.etcd import endpoints_of, tls_context
        from sdn.path_service.consensus.etcd_store import EtcdStore

        try:
            endpoints = endpoints_of(self.endpoints)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--etcd") from None
        if not endpoints[0].is_tls:
            if given:
                raise click.UsageError(f"{given[0]} is for etcd at https://, and --etcd says http://")
            return EtcdStore(endpoints, None, self.prefix, name, lease_s)
        if self.key is not None and self.certificate is None:
            raise click.UsageError("--etcd-key needs --etcd-cert")
        try:
            tls = tls_context(self.ca, self.certificate, self.key)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=" ".join(given)) from None
        return EtcdStore(endpoints, tls, self.prefix, name, lease_s)


def etcd_options(command: _Command) -> _Command:
    """Adds --etcd and what belongs to it, as `etcd`."""

    @wraps(command)
    def with_etcd(
        *arguments: Any,
        etcd_endpoints: str | None,
        etcd_prefix: str,
        etcd_ca: Path | None,
        etcd_cert: Path | None,
        etcd_key: Path | None,
        **more: Any,
    ) -> Any:
        chosen = EtcdOptions(etcd_endpoints, etcd_prefix, etcd_ca, etcd_cert, etcd_key)
        return command(*arguments, etcd=chosen, **more)

    added: Any = with_etcd
    for option in reversed(_OPTIONS):
        added = option(added)
    return added  # type: ignore[no-any-return]


_OPTIONS = (
    click.option(
        "--etcd",
        "etcd_endpoints",
        metavar="URL,...",
        help="The members of an etcd, such as https://10.0.0.7:2379: it elects one of the path services that name it, "
        "and has their drains, pins and dead links.",
    ),
    click.option(
        "--etcd-prefix",
        metavar="PREFIX",
        default="/paralet",
        show_default=True,
        help="With --etcd: the beginning of all keys. Each fabric needs one of its own.",
    ),
    click.option("--etcd-ca", metavar="FILE", type=_FILE, help="With --etcd: the certificate of its authority."),
    click.option("--etcd-cert", metavar="FILE", type=_FILE, help="With --etcd: the certificate of this client."),
    click.option(
        "--etcd-key", metavar="FILE", type=_FILE, help="With --etcd: the key of --etcd-cert, if not in the same file."
    ),
)
