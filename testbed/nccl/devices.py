# SPDX-License-Identifier: Apache-2.0
"""The device of ranks, a GPU or the CPU device where there is none, and the libraries that either needs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from testbed.errors import InputError
from testbed.nccl import libraries
from testbed.nccl.cuda import Cuda
from testbed.nccl.libnccl import Nccl

Kind = Literal["gpu", "cpu"]

CHOICES = ("auto", "gpu", "cpu")
"""The values of --device."""

_GPU_NODES = (("/proc/driver/nvidia/gpus", "*"), ("/dev", "nvidia[0-9]*"))
"""Folder and pattern of what NVIDIA's driver makes for every GPU."""

_VERSION = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Libraries:
    """The libraries of a run on one kind of device."""

    kind: Kind
    nccl: Path
    cudart: Path | None
    """CUDA's runtime, for a GPU. The CPU device brings its own."""

    def words(self) -> list[str]:
        """Arguments for another process; see `of_words`."""
        return [self.kind, str(self.nccl), str(self.cudart or "")]

    @staticmethod
    def of_words(words: Sequence[str]) -> "Libraries":
        """The libraries that `words` names."""
        kind, nccl, cudart = words
        return Libraries(cast(Kind, kind), Path(nccl), Path(cudart) if cudart else None)

    def load(self) -> tuple[Cuda, Nccl]:
        """Load both into this process. Raises TestbedError where one cannot be used."""
        if self.cudart is not None:
            return Cuda(self.cudart), Nccl(self.nccl)
        from testbed.nccl.cpu_device import attach

        runtime = attach(self.nccl)
        return Cuda(runtime), Nccl(self.nccl)


def choose(device: str) -> Kind:
    """The kind of device for what --device says: `auto` takes a GPU where the driver shows one, even a broken one."""
    if device == "auto":
        return "gpu" if any(any(Path(folder).glob(pattern)) for folder, pattern in _GPU_NODES) else "cpu"
    return cast(Kind, device)


def find(kind: Kind, nccl: str | None, cudart: Path | None) -> Libraries:
    """The libraries for a kind of device. `nccl` is a version of an installed wheel, or a path.

    Raises InputError, which says how to mend it.
    """
    named = _named(nccl)
    if kind == "cpu":
        if cudart is not None:
            raise InputError("--cudart is for a GPU; the CPU device brings its own CUDA runtime")
        return Libraries(kind, named or _newest(installed()), None)
    return Libraries(
        kind,
        named or libraries.find(libraries.NCCL, "--nccl"),
        libraries.find(libraries.CUDART, "--cudart", cudart),
    )


def installed() -> Mapping[str, Path]:
    """The releases of NCCL that `make nccl` has installed, by version, the newest first."""
    try:
        from testbed.nccl.cpu_device import wheels
    except ImportError:  # an archive for a machine with a GPU (`bundle`) has no CPU device
        return {}
    return wheels.installed()


def _named(nccl: str | None) -> Path | None:
    if nccl is None:
        return None
    if _VERSION.fullmatch(nccl):
        found = installed()
        if nccl not in found:
            have = ", ".join(found) or "none"
            raise InputError(f"--nccl: NCCL {nccl} is not installed (installed: {have}); `make nccl` installs it")
        return found[nccl]
    if not Path(nccl).is_file():
        raise InputError(f"--nccl: there is no file {nccl}, and it is not a version such as 2.27.7")
    return Path(nccl).resolve()


def _newest(found: Mapping[str, Path]) -> Path:
    if not found:
        raise InputError(
            "NCCL is not installed, and this machine has no GPU: in a checkout run `make nccl`, which fetches NVIDIA's "
            "wheel for .venv/bin/paralet, or name a libnccl.so.2 with --nccl"
        )
    return next(iter(found.values()))
