# SPDX-License-Identifier: Apache-2.0
"""Which releases of NCCL are installed."""

from pathlib import Path

from testbed.nccl.cpu_device.wheels import installed


def install(root: Path, version: str) -> Path:
    library = root / version / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_text("")
    return library


def test_the_newest_release_comes_first(tmp_path: Path) -> None:
    expected = {version: install(tmp_path, version) for version in ("2.9.1", "2.32.3", "2.27.7")}
    found = installed(tmp_path)
    assert found == expected
    assert list(found) == ["2.32.3", "2.27.7", "2.9.1"]


def test_a_folder_without_a_library_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "2.30.7").mkdir()
    install(tmp_path, "2.30.7.new")
    assert installed(tmp_path) == {}
    assert installed(tmp_path / "absent") == {}
