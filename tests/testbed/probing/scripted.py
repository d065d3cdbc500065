# SPDX-License-Identifier: Apache-2.0
"""A prober without a network: a function says which router a probe meets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hostlib.probing import Failure, Prober, Target
from netmodel.probing.observations import Answer, Observation

Answers = Callable[[Target, int, int, int], str | None]
"""By target, source port, time to live and how often that was asked before: the address that answers."""


class Scripted(Prober):
    """Answers in the order of the questions, 0.01 s apart. A silent hop is asked once."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._asked: list[tuple[Target, int, int]] = []
        self._seen: list[Observation] = []
        self._times: dict[tuple[Target, int, int], int] = {}
        self.packets = 0

    def ask(self, target: Target, ttl: int, ports: Iterable[int]) -> None:
        self._asked += [(target, port, ttl) for port in ports]

    def run(self, timeout_s: float) -> bool:
        for target, port, ttl in self._asked:
            times = self._times.setdefault((target, port, ttl), 0)
            router = self._answers(target, port, ttl, times)
            self._times[target, port, ttl] += 1
            answer: Answer = "none" if router is None else "destination" if router == target.destination else "hop"
            self._seen.append(
                Observation(
                    target.source,
                    target.destination,
                    target.protocol,
                    port,
                    target.destination_port,
                    ttl,
                    answer,
                    router,
                    None if router is None else 0.001,
                    self.packets * 0.01,
                )
            )
            self.packets += 1
        self._asked = []
        return True

    def drop_waiting(self) -> int:
        return 0

    def take_observations(self) -> list[Observation]:
        seen, self._seen = self._seen, []
        return seen

    def take_failures(self) -> list[Failure]:
        return []
