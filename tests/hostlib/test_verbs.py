# SPDX-License-Identifier: Apache-2.0
"""The `verbs` back end on machines without an RDMA device or libibverbs: nothing else may depend on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

import nccl_net_plugin
from hostlib import Device, DeviceError, Faults, _engine
from nccl_net_plugin.programs import driver_program

ADDRESS = "127.0.0.1"


def without_verbs(directory: Path) -> dict[str, str]:
    """An environment in which libibverbs cannot be loaded, wherever it is installed."""
    (directory / "libibverbs.so.1").write_text("no library")
    return {**os.environ, "LD_LIBRARY_PATH": str(directory)}


@pytest.mark.parametrize("library", [nccl_net_plugin.path(), Path(_engine.__file__)], ids=lambda path: path.name)
def test_no_binary_links_libibverbs(library: Path) -> None:
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        needed = [tag.needed for tag in section.iter_tags("DT_NEEDED")]
    assert needed
    assert not [name for name in needed if name.startswith(("libibverbs", "libmlx5", "librdmacm"))]


def test_without_libibverbs_the_error_says_what_to_install_and_soft_works(tmp_path: Path) -> None:
    program = f"""
from hostlib import Device, DeviceError
Device("{ADDRESS}").close()
try:
    Device("{ADDRESS}", backend="verbs")
except DeviceError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=without_verbs(tmp_path), capture_output=True, text=True, check=True
    )
    (sentence,) = done.stdout.splitlines()
    assert sentence.startswith("the verbs back end")
    assert "install" in sentence


def test_without_libibverbs_the_plugins_error_says_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [driver_program(), "--transport", nccl_net_plugin.path(), "--spawn", "2", "--bytes", "4000"],
        env={**without_verbs(tmp_path), "PARALET_BACKEND": "verbs", "NCCL_DEBUG": "WARN"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    (sentence,) = {line.partition("the verbs back end")[2] for line in done.stderr.splitlines() if "verbs" in line}
    assert "install" in sentence


def test_an_address_without_an_rdma_device_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"no RDMA device has a RoCEv2 GID for 127\.0\.0\.1|install"):
        Device(ADDRESS, backend="verbs")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"backend": "hard"}, "backend must be soft, tcp or verbs, not 'hard'"),
        ({"gid_index": 1}, "are only for backend='verbs'"),
        ({"service_level": 3}, "are only for backend='verbs'"),
        ({"backend": "verbs", "faults": Faults(drop=0.1)}, "faults is only for backend='soft'"),
        ({"backend": "verbs", "gid_index": 256}, "gid_index must be 0 to 255, not 256"),
        ({"pkey_index": 1}, "pkey_index is only for backend='verbs'"),
        ({"backend": "verbs", "service_level": 8}, "service_level must be 0 to 7, not 8"),
    ],
)
def test_options_of_the_other_back_end_are_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Device(ADDRESS, **options)  # type: ignore[arg-type]
