# SPDX-License-Identifier: Apache-2.0
"""Checks of a spec whose switches are programmed by an os-ken app of the user's.

Nothing of ours knows what such an app does. So whatever programs switches too, or needs to know which path a source
port takes, is refused.
"""

from netmodel import Topology
from testbed.conflict import Conflict
from testbed.spec.experiment import Experiment
from testbed.spec.findings import Findings
from testbed.spec.instance import Instance
from testbed.spec.written import Spec


def check_app(spec: Spec, topology: Topology, found: Findings) -> None:
    """Checks that the fabric can have an app of the user's, if the spec has one."""
    if spec.openflow is None:
        return
    if spec.fabric != "mininet":
        found.add(Conflict("only fabric mininet has switches with OpenFlow; leave it out, or use mininet", "openflow"))
    if any(switch.role == "ocs" for switch in topology.switches):
        said = f"topology {topology.name} has optical switches, which only our own app goes with; leave it out"
        found.add(Conflict(said, "openflow"))
    for key, asked in {
        "pinning": spec.pinning == "rules",
        "local_nic": spec.local_nic is not None,
        "placement": spec.placement.rule == "vclos",
    }.items():
        if asked:
            found.add(Conflict("it needs rules of our own app; leave it out, or openflow", key))


def check_app_serves(experiment: Experiment, found: Findings) -> None:
    """Checks that nothing depends on paths that only our own app makes, if the spec has another one."""
    if experiment.spec.openflow is None:
        return
    if len(experiment.jobs) > 1:
        said = "the links that jobs share are told by predicted paths, and an app of your own has none; give one job"
        found.add(Conflict(said, "jobs"))
    first = Instance(experiment, experiment.seeds[0])
    for index, policy in enumerate(experiment.spec.policies):
        if policy.needs_service or policy.kind.steers or policy.planned(first.placed, first.planned()):
            said = f"policy {policy.policy} plans paths by the rules of our own app; take ecmp or adaptive"
            found.add(Conflict(said, "policies", index, "policy"))
