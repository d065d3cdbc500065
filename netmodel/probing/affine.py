# SPDX-License-Identifier: Apache-2.0
"""The paths of all source ports from few probes, where the switches' choices are affine in the bits of the port.

CRC, XOR and Toeplitz hashes are affine over GF(2): flipping bits of the port changes the hash by an amount that does
not depend on the other bits (RePaC: Zhang et al., "Hashing Linearity Enables Relative Path Control in Data Centers",
USENIX ATC 2021). With group sizes that are powers of two the same holds for the choice. Which path stands for which
value of the hash is not known, and need not be: equal sums of bits give equal paths.

A port's `label` is what its probe tells of its path, for example the topmost router; any hashable value will do.
"""

import math
import random
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Generic, TypeVar

Label = TypeVar("Label", bound=Hashable)

FIRST_PORT = 0xC000
PORT_BITS = 14
"""Ports 0xC000..0xFFFF: `netmodel.ENTROPY_PORTS`."""

VERIFICATIONS = 44
"""Probes that must agree before a model is used. By `wrong_at_most` fewer than one port in ten is then wrong."""
_MOST_DIMENSIONS = 10  # 1,024 paths; each path costs a probe


def wrong_at_most(verifications: int, confidence: float = 0.99) -> float:
    """The part of the ports that a model may predict wrongly after so many probes of random ports have agreed.

    If it predicted a larger part wrongly, at least one probe would have disagreed with probability `confidence`.
    """
    return float(1 - (1 - confidence) ** (1 / verifications)) if verifications else 1.0


@dataclass(frozen=True)
class AffineModel(Generic[Label]):
    """The label of port `FIRST_PORT` XOR d is `labels[v]`: v is the sum (XOR) of `bits[i]` for all bits i of d, and of
    `offset`."""

    bits: tuple[int, ...]
    labels: Mapping[int, Label]
    offset: int = 0

    def label(self, port: int) -> Label:
        """The label of a port in 0xC000..0xFFFF. Raises KeyError for another one."""
        if port >> PORT_BITS != FIRST_PORT >> PORT_BITS:
            raise KeyError(f"port {port} is not in 0xC000..0xFFFF")
        return self.labels[self.offset ^ self._sum(port ^ FIRST_PORT)]

    def ports(self, label: Label) -> Iterator[int]:
        """The ports with a label, ascending; none for a label that no port has."""
        value = self._values.get(label)
        if value is None:
            return
        pivots, kernel = self._solved
        rest, least = value ^ self.offset, 0
        for pivot, delta in pivots:
            if rest >> (pivot.bit_length() - 1) & 1:
                rest, least = rest ^ pivot, least ^ delta
        if rest:
            return
        for vector in reversed(kernel):
            least = min(least, least ^ vector)
        for number in range(1 << len(kernel)):
            port = FIRST_PORT ^ least
            for place, vector in enumerate(kernel):
                if number >> place & 1:
                    port ^= vector
            yield port

    def moved(self, port: int, label: Label) -> "AffineModel[Label]":
        """The model of another pair behind the same switches, of which one port's label is known.

        Other addresses change the hash by a constant. Raises KeyError for a label that this model lacks.
        """
        return AffineModel(self.bits, self.labels, self._values[label] ^ self._sum(port ^ FIRST_PORT))

    def _sum(self, delta: int) -> int:
        value = 0
        for place, change in enumerate(self.bits):
            if delta >> place & 1:
                value ^= change
        return value

    @cached_property
    def _values(self) -> dict[Label, int]:
        return {label: value for value, label in self.labels.items()}

    @cached_property
    def _solved(self) -> tuple[list[tuple[int, int]], list[int]]:
        """(Value, change of the port) in echelon form, highest bit first; and the changes that leave all labels alone.

        The latter are in reduced echelon form, ascending, so that their sums ascend as binary numbers do.
        """
        pivots: list[tuple[int, int]] = []
        kernel: list[int] = []
        for place, value in enumerate(self.bits):
            delta = 1 << place
            for pivot, change in pivots:
                if value >> (pivot.bit_length() - 1) & 1:
                    value, delta = value ^ pivot, delta ^ change
            if value:
                pivots.append((value, delta))
                pivots.sort(reverse=True)
            else:
                kernel.append(delta)
        reduced: list[int] = []
        for vector in kernel:
            for other in sorted(reduced, reverse=True):
                vector = min(vector, vector ^ other)
            top = vector.bit_length() - 1
            reduced = [other ^ vector if other >> top & 1 else other for other in reduced] + [vector]
        return pivots, sorted(reduced)


@dataclass(frozen=True, slots=True)
class Judgement(Generic[Label]):
    """What the labels seen so far say."""

    model: AffineModel[Label] | None
    """The only affine model that agrees with all of them; None while ports are wanted, or where there is none."""
    wanted: tuple[int, ...]
    """Ports to probe next: for the model, then to verify it. None are wanted when all is decided."""
    verified: int
    """Random ports that were probed to verify the model. All agreed."""

    @property
    def affine(self) -> bool | None:
        """Whether the model may be used; None while ports are wanted."""
        return None if self.wanted else self.model is not None


def judge(
    seen: Mapping[int, Label], seed: int, *, known: AffineModel[Label] | None = None, verifications: int = VERIFICATIONS
) -> Judgement[Label]:
    """Whether the labels of one pair's ports are affine. Call it again when wanted ports have been probed.

    A model of P paths takes 14 + P - log2(P) probes, and `verifications` random ones, drawn by `seed`. With `known`,
    the verified model of another pair behind the same switches, it takes one and these; if they disagree, a model of
    its own is tried. Groups that are no power of two are not affine, nor are Linux's and Open vSwitch's hashes: the
    answer is then no, and ports have to be sampled.
    """
    if known is not None:
        if FIRST_PORT not in seen:
            return Judgement(None, (FIRST_PORT,), 0)
        if seen[FIRST_PORT] in known.labels.values():
            judged = _verified(known.moved(FIRST_PORT, seen[FIRST_PORT]), seen, {FIRST_PORT}, seed, verifications)
            if judged.affine is not False:
                return judged
    fit = _fit(seen)
    if fit is None or isinstance(fit, list):
        return Judgement(None, tuple(fit or ()), 0)
    model, used = fit
    return _verified(model, seen, used, seed, verifications)


def _verified(
    model: AffineModel[Label], seen: Mapping[int, Label], used: set[int], seed: int, verifications: int
) -> Judgement[Label]:
    """The model, if all ports seen agree with it, and the ports that are still wanted to verify it."""
    if any(model.label(port) != label for port, label in seen.items()):
        return Judgement(None, (), 0)
    drawn = list(islice((port for port in _at_random(seed) if port not in used), verifications))
    wanted = tuple(port for port in drawn if port not in seen)
    return Judgement(model, wanted, len(drawn) - len(wanted))


def _fit(seen: Mapping[int, Label]) -> tuple[AffineModel[Label], set[int]] | list[int] | None:
    """The model and the ports that it follows from; or the ports that it still needs; or None where there is none."""
    single = [FIRST_PORT, *(FIRST_PORT ^ 1 << place for place in range(PORT_BITS))]
    if missing := [port for port in single if port not in seen]:
        return missing
    used = set(single)
    values: dict[Label, int] = {seen[FIRST_PORT]: 0}
    labels: dict[int, Label] = {0: seen[FIRST_PORT]}
    deltas = [0]  # by value: a change of the port that changes the hash by this value
    bits: list[int] = []
    for port in single[1:]:
        if seen[port] not in values:
            if len(deltas) >> _MOST_DIMENSIONS:
                return None
            # A value that none of the earlier ones add up to. Its sums with them are paths of their own.
            ports = [port ^ delta for delta in deltas]
            if missing := [each for each in ports if each not in seen]:
                return missing
            for each in ports:
                if seen[each] in values:
                    return None
                values[seen[each]] = len(labels)
                labels[len(labels)] = seen[each]
            used |= set(ports)
            deltas += [port ^ FIRST_PORT ^ delta for delta in deltas]
        bits.append(values[seen[port]])
    return AffineModel(tuple(bits), labels), used


def _at_random(seed: int) -> Iterator[int]:
    """All ports, in an order that follows from the seed."""
    chance = random.Random(seed)
    drawn: set[int] = set()
    while len(drawn) >> PORT_BITS == 0:
        port = FIRST_PORT ^ chance.getrandbits(PORT_BITS)
        if port not in drawn:
            drawn.add(port)
            yield port


def probes_of_model(paths: int, verifications: int = VERIFICATIONS) -> int:
    """The probes that a verified model of so many paths takes, a power of two."""
    return PORT_BITS + paths - int(math.log2(paths)) + verifications
