# SPDX-License-Identifier: Apache-2.0
import random
from collections.abc import Callable, Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netmodel import CrcHash, EcmpHash, LinuxL4Hash, OvsHash, XorHash, clos, equal_cost_paths, leaf_spine
from netmodel import paths_of_ports as real_paths
from netmodel.probing.affine import AffineModel, Judgement, judge, probes_of_model, wrong_at_most

PORTS = range(0xC000, 0x10000)


def learned(
    label: Callable[[int], Hashable], seed: int = 1, known: AffineModel[Hashable] | None = None
) -> tuple[Judgement[Hashable], int]:
    """The last judgement, and the number of probes, where every wanted port is probed."""
    seen: dict[int, Hashable] = {}
    while wanted := (judged := judge(seen, seed, known=known)).wanted:
        assert not set(wanted) & set(seen)
        seen |= {port: label(port) for port in wanted}
    return judged, len(seen)


def affine(bits: list[int], offset: int, names: list[int]) -> Callable[[int], int]:
    def label(port: int) -> int:
        value = offset
        for place, change in enumerate(bits):
            if port >> place & 1:
                value ^= change
        return names[value]

    return label


@st.composite
def affine_labels(draw: st.DrawFn) -> tuple[Callable[[int], int], int]:
    """An affine choice of at most 2^d paths, which have names without order."""
    dimensions = draw(st.integers(0, 6))
    value = st.integers(0, 2**dimensions - 1)
    bits = draw(st.lists(value, min_size=14, max_size=14))
    names = draw(st.permutations(range(2**dimensions)))
    label = affine(bits, draw(value), names)
    return label, len(set(map(label, PORTS)))


@settings(max_examples=20)
@given(affine_labels(), st.integers(0, 10**6))
def test_every_affine_choice_is_learned_whole(choice: tuple[Callable[[int], int], int], seed: int) -> None:
    label, paths = choice
    judged, probes = learned(label, seed)
    assert judged.affine
    assert judged.model is not None
    assert judged.verified == 44
    assert probes <= probes_of_model(paths)
    assert all(judged.model.label(port) == label(port) for port in random.Random(seed).sample(PORTS, 500))
    wanted = label(PORTS[seed % len(PORTS)])
    assert list(judged.model.ports(wanted)) == [port for port in PORTS if label(port) == wanted]
    assert list(judged.model.ports(-1)) == []


@settings(max_examples=20)
@given(affine_labels(), st.integers(0, 10**6), st.floats(0.01, 1), st.integers(2, 16))
def test_what_is_not_affine_is_not_accepted_beyond_the_bound(
    choice: tuple[Callable[[int], int], int], seed: int, part: float, paths: int
) -> None:
    """A part of the ports goes elsewhere. An accepted model is right for the rest, as far as 44 probes can tell."""
    chance = random.Random(seed)
    table = {port: chance.randrange(paths) if chance.random() < part else choice[0](port) for port in PORTS}
    judged, _ = learned(table.__getitem__, seed)
    if judged.affine:
        assert judged.model is not None
        wrong = sum(judged.model.label(port) != label for port, label in table.items())
        assert wrong / len(PORTS) <= wrong_at_most(44, confidence=1 - 1e-9)


def test_wrong_models_are_accepted_as_rarely_as_told() -> None:
    """With one port in ten wrong, fewer than one model in a hundred is accepted."""
    base = affine([1 << place % 2 for place in range(14)], 0, [0, 1, 2, 3])
    accepted = 0
    for seed in range(200):
        chance = random.Random(f"ports {seed}")
        wrong = set(chance.sample(PORTS, len(PORTS) // 10))
        judged, _ = learned(lambda port, wrong=wrong: base(port) ^ (port in wrong), seed)  # type: ignore[misc]
        accepted += bool(judged.affine)
    assert accepted <= 7  # 2 are expected at most; more come once in a thousand tests, and the seeds are fixed


def test_the_bound_follows_from_the_number_of_probes() -> None:
    assert wrong_at_most(0) == 1
    assert wrong_at_most(44) == pytest.approx(0.0994, abs=1e-4)
    assert (1 - wrong_at_most(20, 0.9)) ** 20 == pytest.approx(0.1)


@pytest.mark.parametrize("ecmp_hash", [CrcHash("crc16"), CrcHash("crc32"), XorHash()])
@pytest.mark.parametrize(
    ("topology", "ends"),
    [(leaf_spine(2, 8, 1, 10**9), ("h1", "h2")), (clos(2, 1, 4, 4, 1, 10**9), ("h1", "h2"))],
    ids=["two tiers", "three tiers"],
)
def test_hashes_of_asics_are_affine(ecmp_hash: EcmpHash, topology: object, ends: tuple[str, str]) -> None:
    paths, taken = real_paths(topology, *ends, ecmp_hash)  # type: ignore[arg-type]
    label = dict(zip(PORTS, taken.tolist(), strict=True)).__getitem__
    judged, probes = learned(label)
    assert judged.affine
    assert judged.model is not None
    assert [judged.model.label(port) for port in PORTS] == taken.tolist()
    assert probes <= probes_of_model(8 if len(paths) == 8 else 16)


@pytest.mark.parametrize("ecmp_hash", [LinuxL4Hash(), OvsHash()])
@pytest.mark.parametrize("spines", [2, 3, 4, 8])
def test_other_hashes_are_not_affine(ecmp_hash: EcmpHash, spines: int) -> None:
    _, taken = real_paths(leaf_spine(2, spines, 1, 10**9), "h1", "h2", ecmp_hash)
    assert learned(dict(zip(PORTS, taken.tolist(), strict=True)).__getitem__)[0].affine is False


def test_groups_that_are_no_power_of_two_are_not_affine() -> None:
    _, taken = real_paths(leaf_spine(2, 3, 1, 10**9), "h1", "h2", CrcHash("crc32"))
    assert learned(dict(zip(PORTS, taken.tolist(), strict=True)).__getitem__)[0].affine is False


def test_a_model_moves_to_other_pairs_of_the_same_switches_by_one_probe() -> None:
    topology = leaf_spine(3, 4, 2, 10**9)
    assert len(equal_cost_paths(topology, "h1", "h3")) == 4

    def labels(source: str, destination: str) -> dict[int, Hashable]:
        paths, taken = real_paths(topology, source, destination, CrcHash("crc32"))
        return {port: paths[index][1].port for port, index in zip(PORTS, taken.tolist(), strict=True)}

    first, _ = learned(labels("h1", "h3").__getitem__)
    assert first.model is not None
    for ends in (("h1", "h4"), ("h2", "h3"), ("h1", "h6")):
        own = labels(*ends)
        judged, probes = learned(own.__getitem__, known=first.model)
        assert judged.affine
        assert judged.model is not None
        assert probes == 1 + 44
        assert all(judged.model.label(port) == own[port] for port in PORTS)


def test_a_model_that_is_wrong_for_another_pair_is_not_used_there() -> None:
    base = affine([1 << place % 2 for place in range(14)], 0, [0, 1, 2, 3])
    other = affine([1 << place % 3 % 2 for place in range(14)], 1, [0, 1, 2, 3])
    first, _ = learned(base)
    assert first.model is not None
    judged, _ = learned(other, known=first.model)
    assert judged.affine
    assert judged.model is not None
    assert all(judged.model.label(port) == other(port) for port in PORTS)
    chance = random.Random(3)
    table = {port: chance.randrange(4) for port in PORTS}
    assert learned(table.__getitem__, known=first.model)[0].affine is False


def test_ports_outside_the_range_have_no_label() -> None:
    judged, _ = learned(lambda port: 0)
    assert judged.model is not None
    with pytest.raises(KeyError, match="port 80 is not in"):
        judged.model.label(80)
