# SPDX-License-Identifier: Apache-2.0
"""A CA for tests, by the command openssl. Its keys are of no use elsewhere."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Issued:
    """The files of a certificate."""

    ca: Path
    certificate: Path
    key: Path


class Authority:
    """Makes its own certificate in a new folder, and issues others."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._key = folder / "ca-key.pem"
        extensions = ("-addext", "basicConstraints=critical,CA:TRUE,pathlen:0")
        _openssl("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.ca, "-subj", "/CN=CA", *extensions)

    def issue(
        self, name: str, *addresses: str, days: int = 1, use: str = "clientAuth,serverAuth", dns: tuple[str, ...] = ()
    ) -> Issued:
        """A certificate for addresses and DNS names, in place of an earlier one with this name. With -1 days it has
        expired."""
        issued = Issued(self.ca, self.folder / f"{name}.pem", self.folder / f"{name}-key.pem")
        request = self.folder / f"{name}.csr"
        names = ",".join([*(f"IP:{address}" for address in addresses), *(f"DNS:{each}" for each in dns)])
        wanted = [f"basicConstraints=critical,CA:FALSE\nextendedKeyUsage={use}\n"]
        if names:
            wanted.append(f"subjectAltName={names}\n")
        extensions = self.folder / f"{name}.ext"
        extensions.write_text("".join(wanted))
        _openssl("req", "-new", *_NEW_KEY, "-keyout", issued.key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.ca, "-CAkey", self._key, "-extfile", extensions)
        _openssl("x509", "-req", "-in", request, *signer, "-days", days, "-out", issued.certificate)
        return issued


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
