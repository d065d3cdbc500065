# SPDX-License-Identifier: Apache-2.0
"""The real NCCL on the CPU device, where `make nccl` has installed it."""

from __future__ import annotations

import pytest

import nccl_net_plugin
from testbed.nccl import devices


@pytest.fixture(scope="session")
def releases() -> list[str]:
    """The installed releases of NCCL, newest first. Skips where there is none, or no plugin."""
    try:
        nccl_net_plugin.path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    found = list(devices.installed())
    if not found:
        pytest.skip("NCCL is not installed: `make nccl` installs it")
    return found


@pytest.fixture(scope="session")
def nccl(releases: list[str]) -> str:
    """The newest installed release."""
    return releases[0]
