# SPDX-License-Identifier: Apache-2.0
"""Another user's Open vSwitch in separate namespaces. For every line on standard input it prints its state."""

import os
import sys
from pathlib import Path

from emul.ovs import PrivateOvs


def main() -> None:
    with PrivateOvs(Path("/dev/shm/bystander"), Path(sys.argv[1])) as ovs:
        ovs.command("ovs-vsctl", "add-br", "leaf1", "--", "set", "bridge", "leaf1", "datapath_type=netdev")
        ovs.command("ovs-ofctl", "add-flow", "leaf1", "priority=7,actions=drop")
        for _line in sys.stdin:
            bridges = ovs.command("ovs-vsctl", "list-br").split()
            flows = ovs.command("ovs-ofctl", "dump-flows", "leaf1").count("priority=7")
            print(bridges, flows, sorted(os.listdir("/sys/class/net")), flush=True)


if __name__ == "__main__":
    main()
