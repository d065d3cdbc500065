# SPDX-License-Identifier: Apache-2.0
"""The choice of device and libraries, and what is said about a GPU that does not work."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from testbed.errors import InputError, TestbedError
from testbed.nccl import devices, probe
from testbed.nccl.cuda import Cuda, CudaError
from testbed.nccl.devices import Libraries
from testbed.nccl.libnccl import Nccl

GPU = Libraries("gpu", Path("libnccl.so.2"), Path("libcudart.so.13"))


class Machine:
    """What CUDA says on a machine."""

    def __init__(self, driver: int = 13000, gpus: tuple[str, ...] = ("NVIDIA H200",), error: str = "") -> None:
        self._driver, self._gpus, self._error = driver, gpus, error

    def versions(self) -> tuple[int, int]:
        return self._driver, 13000

    def device_names(self) -> list[str]:
        if self._error:
            raise CudaError(self._error)
        return list(self._gpus)


class Release:
    """A release of NCCL."""

    def __init__(self, version: int) -> None:
        self._version = version

    def version(self) -> int:
        return self._version


def found(monkeypatch: pytest.MonkeyPatch, machine: Machine, version: int = 23203) -> probe.Found:
    monkeypatch.setattr(Libraries, "load", lambda self: (cast(Cuda, machine), cast(Nccl, Release(version))))
    return probe.look(GPU, None)


def test_a_working_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, Machine()) == probe.Found("gpu", ("NVIDIA H200",), "2.32.3", "13.0", "13.0")


@pytest.mark.parametrize(
    ("machine", "version", "sentence"),
    [
        (Machine(driver=0), 23203, "this machine has no working NVIDIA driver; --device cpu runs without a GPU"),
        (Machine(driver=12040), 23203, "is CUDA 13.0, the driver can do 12.4; name an older libcudart with --cudart"),
        (Machine(gpus=()), 23203, "CUDA sees no GPU; --device cpu runs without a GPU"),
        (Machine(error="cudaGetDeviceCount failed: x"), 23203, "CUDA cannot use the GPU: cudaGetDeviceCount failed: x"),
        (Machine(), 22005, "is NCCL 2.20.5; the plugin needs 2.21.0 or later"),
    ],
)
def test_a_gpu_that_does_not_work_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, version: int, sentence: str
) -> None:
    with pytest.raises(TestbedError) as error:
        found(monkeypatch, machine, version)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_auto_takes_a_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "_GPU_NODES", ((str(tmp_path), "nvidia[0-9]*"),))
    assert devices.choose("auto") == "cpu"
    (tmp_path / "nvidiactl").touch()
    assert devices.choose("auto") == "cpu"
    (tmp_path / "nvidia0").touch()
    assert devices.choose("auto") == "gpu"
    assert devices.choose("cpu") == "cpu"


def test_the_newest_installed_release_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    releases = {version: tmp_path / version for version in ("2.32.3", "2.27.7", "2.9.9")}
    monkeypatch.setattr(devices, "installed", lambda: releases)
    assert devices.find("cpu", None, None).nccl == releases["2.32.3"]
    assert devices.find("cpu", "2.27.7", None).nccl == releases["2.27.7"]
    with pytest.raises(InputError, match=r"2\.30\.7 is not installed \(installed: 2\.32\.3, 2\.27\.7, 2\.9\.9\)"):
        devices.find("cpu", "2.30.7", None)


def test_without_a_release_the_error_says_make_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "installed", dict)
    with pytest.raises(InputError, match=r"NCCL is not installed.*in a checkout run `make nccl`"):
        devices.find("cpu", None, None)


def test_libraries_survive_a_command_line() -> None:
    for libraries in (GPU, Libraries("cpu", Path("/a b/libnccl.so.2"), None)):
        assert Libraries.of_words(libraries.words()) == libraries
