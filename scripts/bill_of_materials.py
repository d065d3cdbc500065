# SPDX-License-Identifier: Apache-2.0
"""Writes the bill of materials of a wheel, in CycloneDX 1.5's JSON: what it carries, and what was locked beside it.

usage: python scripts/bill_of_materials.py WHEEL FILE
"""

import hashlib
import re
import sys
import tomllib
import zipfile
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot5
from locked import ROOT, pins
from packageurl import PackageURL

_VENDORED = re.compile(r"[^/]+\.libs/(?P<name>lib[^/]+?)(?:-[0-9a-f]{8})?\.so(?P<version>(?:\.\d+)*)")


def bill_of_materials(wheel: Path, lock: str) -> str:
    """The bill of a wheel and of the packages in a lock file, as JSON."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    bom = Bom()
    bom.metadata.component = Component(name="paralet", version=version, type=ComponentType.APPLICATION)
    for pin in pins(lock):
        bom.components.add(
            Component(
                name=pin.name,
                version=pin.version,
                type=ComponentType.LIBRARY,
                purl=PackageURL("pypi", name=pin.name.lower(), version=pin.version),
            )
        )
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            vendored = _VENDORED.fullmatch(name)
            if vendored is not None:
                bom.components.add(
                    Component(
                        name=vendored["name"],
                        version=vendored["version"].lstrip(".") or None,
                        type=ComponentType.LIBRARY,
                        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=_sha256(files.read(name)))],
                        description=f"in the wheel as {name}",
                    )
                )
    bom.register_dependency(bom.metadata.component, bom.components)
    return JsonV1Dot5(bom).output_as_string(indent=2)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(bill_of_materials(Path(sys.argv[1]), (ROOT / "requirements.lock").read_text()))
