# SPDX-License-Identifier: Apache-2.0
"""What a path service may read anew while it runs."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from netmodel import EcmpHash, Topology
from sdn.path_service.channels import Channels
from sdn.path_service.service import Options


class Files(NamedTuple):
    """What the files of a path service say now."""

    topology: Topology
    ecmp_hash: EcmpHash | None
    hash_name: str | None
    """The name of `ecmp_hash`, for the log."""
    token: str
    options: Options
    channels: Channels
    """For connections to come."""


class ReadError(ValueError):
    """A file cannot be used: one sentence."""


Reread: TypeAlias = Callable[[], Files]
"""Reads the files. Raises ReadError."""
