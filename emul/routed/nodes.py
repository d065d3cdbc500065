# SPDX-License-Identifier: Apache-2.0
"""The namespaces of hosts and routers. Each is kept by a process, and disappears when its last process has ended."""

import subprocess
from collections.abc import Iterable

from emul.commands import FabricError

_KEEPER = "echo; exec sleep infinity"

# FRR's daemons keep sockets in /run/frr and crash logs in /var/tmp. The machine's /run need not have that folder: FRR's
# package makes it by systemd-tmpfiles, which containers mostly lack.
_ROUTER = "mount -t tmpfs -o mode=755 run /run; install -d -m 775 -o frr -g frr /run/frr; mount -t tmpfs tmp /var/tmp; "


class Nodes:
    """A network and a mount namespace for each host and router.

    routers: these have private folders for the files of FRR's daemons. Raises FabricError.
    """

    def __init__(self, hosts: Iterable[str], routers: Iterable[str]) -> None:
        unshare = ["unshare", "--net", "--mount", "--propagation=private", "sh", "-ec"]
        scripts = {**dict.fromkeys(hosts, _KEEPER), **dict.fromkeys(routers, _ROUTER + _KEEPER)}
        self._keepers: dict[str, subprocess.Popen[str]] = {}
        for name, script in scripts.items():
            self._keepers[name] = subprocess.Popen(
                [*unshare, script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,
            )
        for name, keeper in self._keepers.items():
            assert keeper.stdout is not None
            assert keeper.stderr is not None
            if keeper.stdout.readline() != "\n":
                said = keeper.stderr.read().strip()
                self.stop()
                raise FabricError(f"the namespaces of {name} cannot be made: {said}")

    def pid(self, node: str) -> int:
        """The id of a process in a node's namespaces."""
        return self._keepers[node].pid

    def stop(self) -> None:
        """End the processes that keep the namespaces."""
        for keeper in self._keepers.values():
            keeper.kill()
        for keeper in self._keepers.values():
            keeper.communicate()
