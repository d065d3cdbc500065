# SPDX-License-Identifier: Apache-2.0
"""Builds the stub with the C compiler."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ABI = HERE.parents[3] / "nccl_net_plugin" / "native" / "include"
"""Folder of the plugin interface's declarations."""

_FLAGS = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")


@dataclass(frozen=True, slots=True)
class Stub:
    """The built libraries."""

    nccl: Path
    cudart: Path
    plugin: Path
    """A minimal plugin named paralet that uses TCP. Tests of the real plugin use the real one."""


def build(folder: Path) -> Stub:
    """Compile everything into `folder`, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    nccl = ["nccl.c", "net.c", "socket_net.c", "bootstrap.c", "log.c"]
    return Stub(
        nccl=library(folder / "libnccl.so.2", nccl),
        cudart=library(folder / "libcudart.so.13", ["cudart.c"]),
        plugin=plugin(folder / "plugin" / "libnccl-net-paralet.so", "paralet"),
    )


def plugin(path: Path, name: str) -> Path:
    """A plugin with the name `name`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return library(path, ["socket_net.c"], f'-DSTUB_PLUGIN_NAME="{name}"')


def library(path: Path, sources: list[str], *flags: str) -> Path:
    """A shared library whose soname is its file name."""
    command = ["cc", *_FLAGS, *flags, f"-I{ABI}", f"-Wl,-soname,{path.name}", "-o", str(path)]
    subprocess.run([*command, *(str(HERE / source) for source in sources), "-ldl", "-pthread"], check=True)
    return path
