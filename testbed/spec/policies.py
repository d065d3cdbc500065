# SPDX-License-Identifier: Apache-2.0
"""The section `policies` of a spec: a policy and its options. `testbed.policies` has the policies."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from netmodel import IPPROTO_TCP, IPPROTO_UDP, Path, raise_all
from sdn.openflow.steering import Steering
from sdn.planners import DEFAULT_PLANNER, PLANNERS
from sim.packet import Receiver
from testbed.allocation.demands import Within
from testbed.allocation.routes import Pair
from testbed.conflict import Conflict
from testbed.policies import Placed, PolicyKind, option_owners, policy_kind, policy_names
from testbed.quantities import Bytes
from testbed.spec.section import NAME, Section
from testbed.workloads import Transfer

TransportName = Literal["paralet", "tcp", "socket"]

CongestionControl = Literal["delay", "fixed_window"]
"""The engine's laws of congestion control; a test compares them with the engine's own list."""


LANES_MAX = 256

_ONE_M = {"type": "integer", "minimum": 1, "maximum": LANES_MAX}
_M_SCHEMA = {"anyOf": [_ONE_M, {"type": "array", "items": _ONE_M, "minItems": 1}], "default": 1}
"""What a file may have as `m`; `one_per_m` spells lists out."""


def one_per_m(policy: Any) -> Sequence[Any]:
    """The policies that an entry of a spec's list stands for: with a list as `m` one for each number, called NAME-m.

    Anything else is left as it is, also what is no policy.
    """
    if not isinstance(policy, dict) or not isinstance(policy.get("name"), str):
        return [policy]
    numbers = policy.get("m")
    if not isinstance(numbers, list) or not 1 <= len(numbers) <= LANES_MAX:
        return [policy]
    return [{**policy, "name": f"{policy['name']}-{m}", "m": m} for m in numbers]


def _known(name: str) -> str:
    _one_of(name, policy_names())
    policy_kind(name)  # raises ValueError for one of another package that cannot be imported
    return name


def _known_planner(name: str) -> str:
    _one_of(name, list(PLANNERS))
    return name


def _one_of(name: str, known: Sequence[str]) -> None:
    *some, last = map(repr, known)
    if name not in known:
        raise ValueError(f"must be {', '.join(some)} or {last}")


class Policy(Section):
    """One way to choose paths.

    With `transport: tcp` lanes are TCP connections, not RoCEv2. With `transport: socket` workload `nccl` uses NCCL's
    own TCP sockets instead of the plugin, workload `torch` uses Gloo, and `command` gets none of the plugin's
    variables; with policies `pinned` and `controller` each connection gets a planned port (`paralet pin`). `m` is the
    number of lanes.
    `flowlet_bytes` and `mice_bytes` override the engine's own choice. `congestion_control` names the law of the
    engine's windows, and `window_packets` is for its law `fixed_window`. `planner`, `elephant_bytes`, `assign_wait_s`
    and `rates` are for policy `controller`. `uplinks` is for `source_routing`: the spine port of each host port, by
    leaf, or `by_rank`, which halving-doubling needs where the hosts per leaf are no power of two; without it the spine
    ports are given out in order. With `alone` the jobs run one after another, without each other's traffic. With
    `paced` a lane sends at 1 / m of its host's rate at most, as ParaLet's lanes do (section 5.1); otherwise it sends as
    fast as its path allows. `lanes_per: host` gives a host m lanes for all its peers together, as ParaLet's are meant
    to be (section 5.3), and not m for each. `receiver` is for fabric packet.
    """

    name: str = Field(pattern=NAME, max_length=40)
    policy: Annotated[
        str, AfterValidator(_known), Field(json_schema_extra=lambda keys: keys.update(enum=[*policy_names()]))
    ]
    transport: TransportName = "paralet"
    m: Annotated[int, Field(ge=1, le=LANES_MAX), WithJsonSchema(_M_SCHEMA)] = 1
    flowlet_bytes: Bytes | None = Field(default=None, gt=0)
    mice_bytes: Bytes | None = Field(default=None, ge=0)
    congestion_control: CongestionControl | None = None
    window_packets: int | None = Field(default=None, ge=1, le=512)
    planner: Annotated[str, AfterValidator(_known_planner), Field(json_schema_extra={"enum": [*PLANNERS]})] | None = (
        None
    )
    elephant_bytes: Bytes | None = Field(default=None, gt=0)
    assign_wait_s: float | None = Field(default=None, ge=0, le=60)
    rates: bool | None = None
    uplinks: dict[str, dict[int, int]] | Literal["by_rank"] | None = None
    alone: bool = False
    paced: bool = False
    lanes_per: Literal["peer", "host"] = "peer"
    receiver: Receiver | None = None

    @property
    def protocol(self) -> int:
        """The IP protocol of its lanes, which switches hash."""
        return IPPROTO_TCP if self.transport == "tcp" else IPPROTO_UDP

    @property
    def kind(self) -> PolicyKind:
        """What it asks of a fabric, and how it chooses paths."""
        return policy_kind(self.policy)

    def planned(
        self, placed: Placed, transfers: Iterable[Transfer], within: Within | None = None
    ) -> Mapping[Pair, Path]:
        """The paths that it plans before a run, by pair of ranks."""
        return self.kind.paths(placed, transfers, within)

    def steering(self, placed: Placed) -> Steering | None:
        """The steering of the switches. Raises ValueError, which says why not."""
        return self.kind.steering(placed, {name: getattr(self, name) for name in self.kind.options})

    @property
    def needs_service(self) -> bool:
        """Whether a path service runs with it. For programs' sockets only that finds ports which take planned paths."""
        return self.kind.service or (self.transport == "socket" and self.kind.plans)

    @property
    def planner_name(self) -> str:
        """The planner of policy `controller`."""
        return self.planner or DEFAULT_PLANNER

    @model_validator(mode="after")
    def _keys_that_fit(self) -> "Policy":
        found = []
        options = self.kind.options | (policy_kind("controller").options if self.needs_service else frozenset())
        for name, owner in option_owners().items():
            if name not in options and getattr(self, name) is not None:
                found.append(Conflict(f"is for policy {owner} only; leave it out", name))
        if self.window_packets is not None and self.congestion_control != "fixed_window":
            found.append(Conflict("is for congestion_control fixed_window only; leave it out", "window_packets"))
        lanes = self.m != 1 or self.lanes_per == "host"
        if self.transport == "socket" and (lanes or (self.kind.chooses and not self.needs_service)):
            said = "socket has no lanes: take policy ecmp, pinned or controller, leave out m and lanes_per"
            found.append(Conflict(said, "transport"))
        if self.paced and self.kind.division != "pulled":
            found.append(
                Conflict(f"is for lanes that pull flowlets, which policy {self.policy} does not have", "paced")
            )
        if self.lanes_per == "host" and self.kind.scheme != "hashed":
            found.append(
                Conflict(f"is for lanes that each have a path, which policy {self.policy} does not have", "lanes_per")
            )
        raise_all(found)
        return self
