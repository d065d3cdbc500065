# SPDX-License-Identifier: Apache-2.0
"""Optical circuit switches of a fabric: Open vSwitch bridges that connect ports regardless of packet contents.

Each circuit is one OpenFlow rule: what enters by one port leaves by another. The OpenFlow app does not control these
bridges, because an optical switch has a management interface of its own and does not inspect packets. During a
reconfiguration the ports of circuits that change are dark: what enters there is lost. Other circuits stay up.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from emul.ovs import OPENFLOW
from netmodel import Circuits, Topology, check_circuits

RECONFIGURATION_S = 0.010
"""Reconfiguration time of a MEMS switch in seconds (TopoOpt, section 5.1). A robotic patch panel takes minutes."""


class OpticalSwitches:
    """The switches of role "ocs" of one topology. They start without circuits.

    run: runs an OVS command and returns its output (`PrivateOvs.command`); its exceptions are passed on.
    directory: gets one file of rules per switch.
    """

    def __init__(self, topology: Topology, run: Callable[..., str], directory: Path) -> None:
        self._topology = topology
        self._run = run
        self._directory = directory
        self._circuits: dict[str, dict[int, int]] = {
            switch.name: {} for switch in topology.switches if switch.role == "ocs"
        }

    @property
    def circuits(self) -> Circuits:
        """The circuits that are set now."""
        return {name: dict(joined) for name, joined in self._circuits.items()}

    def set(self, circuits: Circuits, reconfiguration_s: float = RECONFIGURATION_S) -> None:
        """Set the named switches to exactly these circuits, all at the same time. Returns when light passes.

        Raises TopologyError as `netmodel.check_circuits` does, before anything changes.
        """
        check_circuits(self._topology, circuits)
        turning = {
            name: {entry: leaving for entry, leaving in self._circuits[name].items() if wanted.get(entry) == leaving}
            for name, wanted in circuits.items()
            if dict(wanted) != self._circuits[name]
        }
        if not turning:
            return
        self._put(turning)
        time.sleep(reconfiguration_s)
        self._put({name: dict(circuits[name]) for name in turning})

    def _put(self, circuits: Mapping[str, dict[int, int]]) -> None:
        for name, joined in circuits.items():
            rules = self._directory / f"{name}.rules"
            rules.write_text(
                "".join(f"in_port={entry},actions=output:{leaving}\n" for entry, leaving in joined.items())
            )
            self._run("ovs-ofctl", "-O", OPENFLOW, "replace-flows", name, str(rules))
            self._circuits[name] = joined
        # The datapath forwards by its own flow table, which is updated a little after the rules.
        self._run("ovs-appctl", "-t", "ovs-vswitchd", "revalidator/wait")
