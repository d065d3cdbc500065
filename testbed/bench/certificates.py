# SPDX-License-Identifier: Apache-2.0
"""Certificates of a path service and of many hosts that a bench simulates, by the command openssl, for a day."""

import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sdn.path_service.tls import TlsFiles
from testbed.errors import TestbedError

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_TOGETHER = 64  # addresses in a certificate: one for each host would take openssl minutes


class Certificates:
    """Makes a CA, and certificates from it, in an empty folder. Raises TestbedError where openssl fails."""

    def __init__(self, folder: Path, service: str, hosts: Sequence[str]) -> None:
        self._folder = folder
        self._ca, self._key = folder / "ca.pem", folder / "ca-key.pem"
        ca = ("-addext", "basicConstraints=critical,CA:TRUE,pathlen:0", "-subj", "/CN=CA")
        _openssl("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self._ca, *ca)
        self.service = TlsFiles(self._ca, *self._issue("service", [service]))
        """The files of the service, which is at this address."""
        self._contexts: list[ssl.SSLContext] = []
        for begin in range(0, len(hosts), _TOGETHER):
            context = ssl.create_default_context(cafile=str(self._ca))
            context.load_cert_chain(*self._issue(f"hosts{begin}", hosts[begin : begin + _TOGETHER]))
            self._contexts.append(context)

    def of(self, host: int) -> ssl.SSLContext:
        """For the connection of one of the hosts. Several share a certificate."""
        return self._contexts[host // _TOGETHER]

    def _issue(self, name: str, addresses: Sequence[str]) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        names = "subjectAltName=" + ",".join(f"IP:{address}" for address in addresses)
        leaf = ("-addext", "basicConstraints=critical,CA:FALSE", "-addext", names, "-subj", f"/CN={name}")
        signer = ("-CA", self._ca, "-CAkey", self._key)
        _openssl("req", "-x509", *signer, *_NEW_KEY, *leaf, "-days", 1, "-keyout", key, "-out", certificate)
        return certificate, key


def _openssl(*arguments: object) -> None:
    try:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise TestbedError("the command openssl is missing: install the package openssl") from None
    except subprocess.CalledProcessError as error:
        raise TestbedError(f"openssl failed: {error.stderr.strip().splitlines()[-1]}") from error
