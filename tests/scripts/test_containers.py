# SPDX-License-Identifier: Apache-2.0
"""The development container is a stage of the Dockerfile, made of files that the repository has."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_development_container_is_a_stage_of_the_dockerfile() -> None:
    folder = ROOT / ".devcontainer"
    build = json.loads((folder / "devcontainer.json").read_text())["build"]
    assert (folder / build["context"]).resolve() == ROOT
    assert (folder / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert build["target"] in stages


def test_the_dockerfile_copies_files_that_are_there() -> None:
    copied = re.findall(r"^COPY (\S+) ", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert "." in copied
    assert all((ROOT / source).exists() for source in copied)
