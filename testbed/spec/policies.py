# SPDX-License-Identifier: Apache-2.0
"""Path policies: their names, which fabric has which policy, and the options of a policy."""

from typing import Literal

from pydantic import Field, model_validator

from netmodel import raise_all
from sdn.planners import DEFAULT_PLANNER, PlannerName
from sim.packet import Receiver
from testbed.misfit import Misfit
from testbed.spec.fabrics import FabricName
from testbed.spec.section import NAME, Section

PolicyName = Literal[
    "ecmp",
    "pinned",
    "adaptive",
    "controller",
    "source_routing",
    "vclos",
    "spraying",
    "oblivious",
    "recycled",
    "plb",
    "qp_scaling",
    "drill",
    "letflow",
    "conweave",
]

STEERED: tuple[PolicyName, ...] = ("source_routing", "vclos")
"""Policies under which switches choose paths regardless of source ports."""

IN_QUEUES: tuple[PolicyName, ...] = ("drill", "letflow", "conweave")
"""Policies that depend on queues, gaps or single packets; only fabric packet models them."""

MODELLED: tuple[PolicyName, ...] = ("spraying", "oblivious", "recycled", "plb", "qp_scaling", *IN_QUEUES)
"""Policies that ParaLet is compared with. The engine does not have them; simulated fabrics do."""

LACKING: dict[FabricName, tuple[PolicyName, ...]] = {
    "mininet": MODELLED,
    "fluid": IN_QUEUES,
    "packet": ("adaptive", "qp_scaling"),
    "softroce": MODELLED,
}
"""Policies that a fabric does not support."""

TransportName = Literal["paralet", "socket"]

CongestionControl = Literal["delay", "fixed_window"]
"""The engine's laws of congestion control; a test compares them with the engine's own list."""


class Policy(Section):
    """One way to choose paths.

    With `transport: socket` workload `nccl` uses NCCL's own TCP sockets instead of the plugin, and workload `torch`
    uses Gloo. `m` is the number of lanes. `flowlet_bytes` and `mice_bytes` override the engine's own choice.
    `congestion_control` names the law of the engine's windows, and `window_packets` is for its law `fixed_window`.
    `planner`, `elephant_bytes` and `assign_wait_s` are for policy `controller`. `uplinks` is for `source_routing`: the
    spine port of each host port, by leaf; without it the spine ports are given out in order. With `alone` the jobs run
    one after another, without each other's traffic. With `paced` a lane sends at 1 / m of its host's rate at most, as
    ParaLet's lanes do (section 5.1); otherwise it sends as fast as its path allows. `receiver` is for fabric packet.
    """

    name: str = Field(pattern=NAME, max_length=40)
    policy: PolicyName
    transport: TransportName = "paralet"
    m: int = Field(default=1, ge=1, le=256)
    flowlet_bytes: int | None = Field(default=None, gt=0)
    mice_bytes: int | None = Field(default=None, ge=0)
    congestion_control: CongestionControl | None = None
    window_packets: int | None = Field(default=None, ge=1, le=512)
    planner: PlannerName | None = None
    elephant_bytes: int | None = Field(default=None, gt=0)
    assign_wait_s: float | None = Field(default=None, ge=0, le=60)
    uplinks: dict[str, dict[int, int]] | None = None
    alone: bool = False
    paced: bool = False
    receiver: Receiver | None = None

    @property
    def planner_name(self) -> PlannerName:
        """The planner of policy `controller`."""
        return self.planner or DEFAULT_PLANNER

    @model_validator(mode="after")
    def _keys_that_fit(self) -> "Policy":
        found = []
        if self.policy != "controller":
            for name in ("planner", "elephant_bytes", "assign_wait_s"):
                if getattr(self, name) is not None:
                    found.append(Misfit("is for policy controller only; leave it out", name))
        if self.window_packets is not None and self.congestion_control != "fixed_window":
            found.append(Misfit("is for congestion_control fixed_window only; leave it out", "window_packets"))
        if self.transport == "socket" and (self.policy != "ecmp" or self.m != 1):
            found.append(Misfit("socket has no lanes: take policy ecmp and m 1", "transport"))
        if self.paced and self.policy in ("spraying", "oblivious", "qp_scaling"):
            found.append(Misfit(f"is for lanes that pull flowlets, which policy {self.policy} does not have", "paced"))
        if self.policy != "source_routing" and self.uplinks is not None:
            found.append(Misfit("is for policy source_routing only; leave it out", "uplinks"))
        raise_all(found)
        return self
