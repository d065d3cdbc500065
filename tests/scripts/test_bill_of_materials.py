# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of a wheel lists what the wheel carries and what was locked."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_bill_lists_vendored_libraries_and_locked_packages(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib is not installed: run 'make setup'")
    wheel, bill = tmp_path / "paralet.whl", tmp_path / "bill.json"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("paralet.libs/libisal-1a2b3c4d.so.2.0.30", b"code")
        files.writestr("hostlib/device.py", b"")
    subprocess.run([sys.executable, ROOT / "scripts" / "bill_of_materials.py", wheel, bill], check=True)
    document = json.loads(bill.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document["metadata"]["component"]["name"] == "paralet"
    by_name = {component["name"]: component for component in document["components"]}
    assert by_name["libisal"]["version"] == "2.0.30"
    assert by_name["libisal"]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"code").hexdigest()}]
    assert by_name["numpy"]["purl"].startswith("pkg:pypi/numpy@")
