# SPDX-License-Identifier: Apache-2.0
"""Which ports to probe, where the switches' choices are affine: one model for all pairs behind the same switches.

A model only proposes ports. A port is given out when its own probe has confirmed it, so a wrong model costs probes and
no more. A model that is wrong too often is dropped, and ports are sampled.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from netmodel.probing.affine import AffineModel, judge

Group = TypeVar("Group", bound=Hashable)
Way = TypeVar("Way", bound=Hashable)

_CHECKS = 20  # proposals before a model is judged by them
_WRONG = 0.1  # of these, at most


@dataclass(slots=True)
class _Shared(Generic[Way]):
    model: AffineModel[Way] | None
    right: int = 0
    wrong: int = 0


class Models(Generic[Group, Way]):
    """Models by group, such as (source leaf, destination pod): pairs for which the same switches choose.

    The pair of a group that is probed first learns the model. `seed` draws the ports that verify it.
    """

    def __init__(self, seed: int = 0) -> None:
        self._groups: dict[Group, _Shared[Way]] = {}
        self._seed = seed

    def affine(self, group: Group) -> bool | None:
        """Whether a group has a model; None before that is known."""
        shared = self._groups.get(group)
        return None if shared is None else shared.model is not None

    def wanted(self, group: Group, known: Mapping[int, Way]) -> tuple[int, ...]:
        """The ports of the pair with these `known` ports whose probes decide whether the group has a model.

        None are wanted once that is decided.
        """
        if group in self._groups:
            return ()
        judged = judge(known, self._seed)
        if judged.affine is not None:
            self._groups[group] = _Shared(judged.model)
        return judged.wanted

    def proposed(self, group: Group, known: Mapping[int, Way], way: Way, count: int) -> list[int]:
        """Up to `count` ports that should lead along `way`, and are not `known`, for a pair with these known ports.

        Empty without a model, and for a pair none of whose ports is known.
        """
        model = self._model(group, known)
        return [] if model is None else list(islice((port for port in model.ports(way) if port not in known), count))

    def ways(self, group: Group, known: Mapping[int, Way]) -> list[Way]:
        """The ways that ports of a pair should reach; empty without a model."""
        model = self._model(group, known)
        return [] if model is None else list(model.labels.values())

    def checked(self, group: Group, right: bool) -> None:
        """A probe of a proposed port has found the predicted way, or another one."""
        shared = self._groups.get(group)
        if shared is None or shared.model is None:
            return
        shared.right += right
        shared.wrong += not right
        checks = shared.right + shared.wrong
        if checks >= _CHECKS and shared.wrong > _WRONG * checks:
            shared.model = None

    def refuse(self, group: Group) -> None:
        """The group gets no model: probes that would decide it are not answered."""
        self._groups[group] = _Shared(None)

    def forget(self, group: Group) -> None:
        """The group's routes have changed: its model, if any, has to be learned again."""
        self._groups.pop(group, None)

    def _model(self, group: Group, known: Mapping[int, Way]) -> AffineModel[Way] | None:
        shared = self._groups.get(group)
        if shared is None or shared.model is None or not known:
            return None
        port, way = next(iter(known.items()))
        try:
            return shared.model.moved(port, way)
        except KeyError:  # a way that the group's first pair did not have
            return None
