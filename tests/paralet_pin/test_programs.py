# SPDX-License-Identifier: Apache-2.0
"""Which programs a preloaded library reaches."""

import stat
import sys
from pathlib import Path

import pytest

from paralet_pin.programs import unreachable

PT_INTERP = b"\x03\x00\x00\x00"


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """This interpreter without the segment that names its loader."""
    image = bytearray(Path(sys.executable).resolve().read_bytes())
    headers, size, count = int.from_bytes(image[32:40], "little"), 56, int.from_bytes(image[56:58], "little")
    for start in range(headers, headers + size * count, size):
        if image[start : start + 4] == PT_INTERP:
            image[start : start + 4] = bytes(4)
    file = tmp_path / "static"
    file.write_bytes(image)
    return file


def test_a_dynamic_program(tmp_path: Path) -> None:
    assert unreachable(Path(sys.executable)) is None
    script = tmp_path / "script"
    script.write_text(f"#!{sys.executable} -u\n")
    assert unreachable(script) is None


def test_a_static_program_and_a_script_of_one(static: Path, tmp_path: Path) -> None:
    said = unreachable(static)
    assert said is not None
    assert "statically" in said
    script = tmp_path / "script"
    script.write_text(f"#! {static}\n")
    assert unreachable(script) == said


def test_a_setuid_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(Path(sys.executable).resolve().read_bytes()[: 1 << 16])
    program.chmod(0o755 | stat.S_ISUID)
    said = unreachable(program)
    assert said is not None
    assert "setuid" in said


def test_what_is_no_program_and_what_cannot_be_read(tmp_path: Path) -> None:
    empty, endless = tmp_path / "empty", tmp_path / "endless"
    empty.write_bytes(b"\x7fELF")
    endless.write_text(f"#!{endless}\n")
    for path in (empty, endless, tmp_path / "missing", tmp_path):
        assert unreachable(path) is None
