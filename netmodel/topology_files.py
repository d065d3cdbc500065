# SPDX-License-Identifier: Apache-2.0
"""Topologies from files: YAML of ours, and the formats of other programs, which their names tell."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from types import MappingProxyType

from netmodel.floodns import read_properties
from netmodel.htsim import read_topo
from netmodel.ns3 import read_ns3
from netmodel.topology import Topology
from netmodel.topology_yaml import TopologySpec
from netmodel.yaml_source import Mistake, SpecError, load_yaml, read_text

_READERS: MappingProxyType[str, Callable[[str, str], Topology]] = MappingProxyType(
    {".topo": read_topo, ".properties": read_properties, ".txt": read_ns3}
)
"""By how the name of a file ends: the reader of its text, which gets the file's name for its errors."""


def is_foreign(path: str | PathLike[str]) -> bool:
    """Whether the name of a file is that of another program's topology: of htsim, floodns or ns-3."""
    return Path(path).suffix in _READERS


def load_topology(path: str | PathLike[str]) -> Topology:
    """The topology in the file at `path`. Raises SpecError."""
    if not is_foreign(path):
        return load_yaml(path, TopologySpec).topology
    file = str(path)
    text = read_text(path)
    try:
        return _READERS[Path(path).suffix](text, file)
    except ValueError as error:
        line, colon, what = str(error).removeprefix(f"{file}:").partition(":")
        raise SpecError(
            Mistake(file, int(line), (), what.strip())
            if colon and line.isdecimal()
            else Mistake(file, None, (), str(error))
        ) from None
