# SPDX-License-Identifier: Apache-2.0
"""The README's start without root works as written, from a clean checkout to the first result."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, SHELL, blocks, shows

PAGE = ROOT / "README.md"
README = PAGE.read_text()
END = "\0"
"""What the shell prints after each block, to tell their outputs apart."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files that Git tracks, as they are now, without anything that was built here."""
    # Of a user who may not own this checkout.
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip(f"only a Git checkout can be copied: {listed.stderr.strip()}")
    copy = tmp_path / "checkout"
    for name in filter(None, listed.stdout.split(END)):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.mark.timeout(1800)  # compiles the native engine
def test_the_start_without_root_works_as_written(checkout: Path, tmp_path: Path) -> None:
    start, end = (README.index(heading) for heading in ("## Start without root", "## Start with real packets"))
    pasted = [block for block in blocks(*SHELL) if block.page == PAGE and start < README.index(block.text) < end]
    assert any("pip install" in block.text for block in pasted)
    home = tmp_path / "home"  # where the README makes the environment
    home.mkdir()
    # Without the environment of this test, in which everything is installed already.
    path = [each for each in os.environ["PATH"].split(":") if Path(each) != Path(sys.executable).parent]
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": ":".join(path),
        "PIP_REQUIRE_VIRTUALENV": "1",  # whatever the README says, this machine's own Python stays as it is
    }
    done = subprocess.run(
        ["bash", "-e"],
        input="".join(f"{block.text}printf '\\0'\n" for block in pasted),
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "No matching distribution" in done.stderr:
        unreachable = re.search(r"after connection broken by (.*)", done.stderr)
        if unreachable:
            pytest.skip(f"pip cannot reach PyPI: {unreachable[1]}")
    assert done.returncode == 0, done.stdout + done.stderr

    for block, printed in zip(pasted, done.stdout.split(END), strict=False):
        if block.output:
            assert shows(block.output, printed[printed.index(block.output.split()[0]) :]), printed
    (report,) = re.findall(r"^Report: (.+)$", done.stdout, re.MULTILINE)
    assert (checkout / report).is_file()
    assert (checkout / report).with_name("summary.json").is_file()
