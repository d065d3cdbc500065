# SPDX-License-Identifier: Apache-2.0
"""The namespaces of routers on machines whose folders differ from those of Debian 12."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from emul.commands import FabricError
from emul.routed.nodes import Nodes
from emul.routed.requirements import lack

LACK = lack()
pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LACK is not None, reason=LACK.what if LACK else ""),
]


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """Mounts in the sandbox, until the test ends: arguments of `mount`, the last of which is the place."""
    with ExitStack() as stack:

        def mounted(*arguments: str) -> None:
            subprocess.run(["mount", *arguments], check=True)
            stack.callback(subprocess.run, ["umount", arguments[-1]], check=True)

        yield mounted


def test_routers_have_a_folder_for_their_daemons_where_the_machine_has_none(mount: Callable[..., None]) -> None:
    """FRR's package has it made by systemd-tmpfiles, which containers mostly lack."""
    mount("-t", "tmpfs", "empty", "/run")
    nodes = Nodes([], ["leaf1"])
    try:
        assert Path(f"/proc/{nodes.pid('leaf1')}/root/run/frr").owner() == "frr"
        assert not Path("/run/frr").exists()
    finally:
        nodes.stop()


def test_namespaces_that_cannot_be_made_are_an_error(mount: Callable[..., None]) -> None:
    mount("--bind", "/dev/null", "/etc/passwd")
    with pytest.raises(FabricError, match=r"^the namespaces of leaf1 cannot be made: .*frr"):
        Nodes([], ["leaf1"])
