# SPDX-License-Identifier: Apache-2.0
"""Puts Mermaid, which draws the diagrams of the documentation site, into a folder, from npm's registry.

Without it the site's theme asks a public server for it, which readers behind a proxy or without network do not reach.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "12.3.0"
SHA512 = (
    "e35d774dd5de2c0b0caee27bf4ea452f93bcf8b4c55e142a676eb4ac5ded8149"
    "a2340b519b852e99ed3823eeb93d137ac99ebd2787fcad56165bccd193ae5463"
)
"""Of the package: `npm view mermaid@VERSION dist.integrity`, in hexadecimal digits."""
ADDRESS = f"https://registry.npmjs.org/mermaid/-/mermaid-{VERSION}.tgz"
FILES = {"package/dist/mermaid.min.js": f"mermaid-{VERSION}.min.js", "package/LICENSE": "LICENSE"}
LARGEST = 32 << 20
"""Bytes."""


def main(folder: Path) -> None:
    if all((folder / name).is_file() for name in FILES.values()):
        return
    with urllib.request.urlopen(ADDRESS, timeout=60) as answer:
        package = answer.read(LARGEST)
    if hashlib.sha512(package).hexdigest() != SHA512:
        sys.exit(f"mermaid: {ADDRESS} is not the package that was expected: its SHA-512 is another")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for member, name in FILES.items():
            content = archive.extractfile(member)
            assert content is not None
            (folder / name).write_bytes(content.read())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
