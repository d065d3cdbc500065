# SPDX-License-Identifier: Apache-2.0
"""Every policy by its name.

To add one: an entry of `OURS`, with a subclass of `PolicyKind` if it plans paths or steers switches. Another package
adds one by an entry point of the group `paralet.policies` with the policy's name, which leads to a `PolicyKind`.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from testbed.policies.base import Movement, PolicyKind
from testbed.policies.planned import Pinned
from testbed.policies.steered import Isolated, SourceRouted

GROUP = "paralet.policies"

_EMULATED = frozenset({"mininet", "routed", "softroce"})
"""Fabrics that have only what the engine has. Policies that ParaLet is compared with are not in it."""

_QUEUES = _EMULATED | {"fluid"}
"""Fabrics without queues, gaps and single packets."""

OURS = MappingProxyType(
    {
        "ecmp": PolicyKind(chooses=False),
        "pinned": Pinned(plans=True),
        # hostlib/native/src/paths/adaptive: three bad flowlets in succession, of four round trips each (4 BDP / m at
        # 1 / m of the line rate), compared with the peer's best lane; four recycled ports.
        "adaptive": PolicyKind(
            device="adaptive",
            movement=Movement(round_trips=12, alone=False, memory=4),
            lacking=frozenset({"packet"}),
        ),
        "controller": PolicyKind(
            device="controller",
            service=True,
            options=frozenset({"planner", "elephant_bytes", "assign_wait_s", "rates"}),
        ),
        "source_routing": SourceRouted(steers=True, options=frozenset({"uplinks"})),
        "vclos": Isolated(steers=True),
        "spraying": PolicyKind(division="sprayed", scheme="spraying", lacking=_EMULATED),
        "oblivious": PolicyKind(division="cycled", scheme="oblivious", lacking=_EMULATED),
        # REPS (Bonato et al., arXiv 2407.21625): the entropy of an acknowledgement without a mark is used again; a
        # marked one is replaced.
        "recycled": PolicyKind(
            scheme="recycled",
            heeds_marks=True,
            movement=Movement(round_trips=1, alone=False, memory=0),
            lacking=_EMULATED,
        ),
        # PLB (Qureshi et al., SIGCOMM 2022) with the default of Linux: 12 congested rounds of a busy flow.
        "plb": PolicyKind(
            scheme="plb",
            heeds_marks=True,
            movement=Movement(round_trips=12, alone=True, memory=0),
            lacking=_EMULATED,
        ),
        "qp_scaling": PolicyKind(division="parted", lacking=_EMULATED | {"packet"}),
        "drill": PolicyKind(scheme="drill", lacking=_QUEUES),
        "letflow": PolicyKind(scheme="letflow", lacking=_QUEUES),
        "conweave": PolicyKind(scheme="conweave", lacking=_QUEUES),
    }
)
"""The policies of paralet's own."""


@cache
def _others() -> dict[str, EntryPoint]:
    """The policies of other packages, which cannot replace ours."""
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in OURS}


def policy_names() -> list[str]:
    """The names of all policies."""
    return [*OURS, *_others()]


@cache
def policy_kind(name: str) -> PolicyKind:
    """The policy of that name. Raises ValueError for an unknown one, and one that cannot be imported."""
    if name in OURS:
        return OURS[name]
    other = _others().get(name)
    if other is None:
        raise ValueError(f"there is no policy {name!r}; take one of {', '.join(policy_names())}")
    try:
        found = other.load()
    except Exception as error:  # whatever its module does
        raise ValueError(f"policy {name} is {other.value}, which cannot be imported: {error}") from error
    if not isinstance(found, PolicyKind):
        raise ValueError(f"policy {name} is {other.value}, which is no testbed.policies.PolicyKind")
    return found


@cache
def option_owners() -> dict[str, str]:
    """By key of a policy in a spec that is for one policy only: the name of that policy."""
    return {option: name for name, kind in OURS.items() for option in sorted(kind.options)}
