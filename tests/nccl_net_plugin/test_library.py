# SPDX-License-Identifier: Apache-2.0
"""The built library: its exports and dependencies, and the Python package that describes it."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

import nccl_net_plugin

ROOT = Path(__file__).parents[2]
TABLES = [f"ncclNetPlugin_v{version}" for version in range(8, 13)]


@pytest.fixture
def dynamic() -> Iterator[DynamicSection]:
    with nccl_net_plugin.path().open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        list(section.iter_tags())  # read while the file is open
        yield section


def test_exports_only_the_tables_of_five_versions() -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", nccl_net_plugin.path()], capture_output=True, text=True, check=True
    )
    assert {line.split()[-1] for line in listing.stdout.splitlines()} == set(TABLES)
    assert nccl_net_plugin.exports() == TABLES


def test_every_table_has_the_plugins_name() -> None:
    library = ctypes.CDLL(str(nccl_net_plugin.path()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    for table in TABLES:
        name = ctypes.c_char_p.in_dll(library, table)  # the first field
        assert name.value == nccl_net_plugin.NAME.encode()


def test_links_the_cplusplus_library_statically(dynamic: DynamicSection) -> None:
    """Programs have their own C++ libraries, perhaps older ones: the plugin must not depend on them."""
    needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
    assert not {name for name in needed if name.startswith(("libstdc++", "libgcc"))}
    assert "libisal.so.2" in needed


def test_finds_isal_beside_itself_and_stays_mapped_after_dlclose(dynamic: DynamicSection) -> None:
    assert [tag.runpath for tag in dynamic.iter_tags("DT_RUNPATH")] == ["$ORIGIN"]
    nodelete = 0x8
    assert any(tag.entry.d_val & nodelete for tag in dynamic.iter_tags("DT_FLAGS_1"))


def test_needs_no_newer_glibc_than_documented() -> None:
    page = (ROOT / "docs" / "plugin.md").read_text()
    documented = re.search(r"glibc (\d+)\.(\d+) or later", page)
    assert documented is not None
    with nccl_net_plugin.path().open("rb") as file:
        section = ELFFile(file).get_section_by_name(".gnu.version_r")
        assert isinstance(section, GNUVerNeedSection)
        names = [auxiliary.name for _, auxiliaries in section.iter_versions() for auxiliary in auxiliaries]
    versions = [tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in names if name.startswith("GLIBC_2")]
    assert max(versions)[:2] <= tuple(map(int, documented.groups()))


def test_environment_loads_this_library() -> None:
    environment = nccl_net_plugin.environment()
    assert environment == {"NCCL_NET_PLUGIN": str(nccl_net_plugin.path()), "NCCL_NET": "paralet"}
    assert Path(environment["NCCL_NET_PLUGIN"]).is_absolute()


def test_one_line_of_python_prints_the_path() -> None:
    program = "import nccl_net_plugin; print(nccl_net_plugin.path())"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_file()


def test_errors_about_a_missing_library_name_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nccl_net_plugin, "_LIB", tmp_path)
    for call in (
        nccl_net_plugin.path,
        nccl_net_plugin.environment,
        nccl_net_plugin.exports,
        nccl_net_plugin.parameters,
    ):
        with pytest.raises(FileNotFoundError, match="build it with `make setup`"):
            call()


def test_the_documentation_names_the_librarys_parameters() -> None:
    page = (ROOT / "docs" / "plugin.md").read_text()
    listed = page[page.index("| parameter |") : page.index("A file for `PARALET_CONFIG`")]
    documented = re.findall(r"^\| `(PARALET_\w+)` \|", listed, re.MULTILINE)
    assert sorted(documented) == sorted(parameter.name for parameter in nccl_net_plugin.parameters())
