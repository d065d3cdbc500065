# SPDX-License-Identifier: Apache-2.0
import random

from netmodel import CrcHash, EcmpHash, LinuxL4Hash, clos, paths_of_ports
from sdn.measured.models import Models

PORTS = range(0xC000, 0x10000)
FABRIC = clos(3, 2, 2, 4, 2, 10**9)


def ways(source: str, destination: str, ecmp_hash: EcmpHash) -> dict[int, str]:
    """What a probe of the topmost tier tells of each port: the core."""
    paths, taken = paths_of_ports(FABRIC, source, destination, ecmp_hash)
    return {port: paths[index][3].node for port, index in zip(PORTS, taken.tolist(), strict=True)}


def learn(models: Models[str, str], truth: dict[int, str]) -> dict[int, str]:
    known: dict[int, str] = {}
    while wanted := models.wanted("leaf1", known):
        known |= {port: truth[port] for port in wanted}
    return known


def test_a_model_of_one_pair_proposes_ports_of_all_pairs_of_the_group() -> None:
    models: Models[str, str] = Models(seed=7)
    first = ways("h1", "h5", CrcHash("crc32"))
    known = learn(models, first)
    assert models.affine("leaf1")
    assert set(models.ways("leaf1", known)) == set(first.values())
    for ends in (("h1", "h6"), ("h2", "h5"), ("h2", "h9")):
        truth = ways(*ends, CrcHash("crc32"))
        known_way = {PORTS[100]: truth[PORTS[100]]}
        for way in set(truth.values()):
            proposed = models.proposed("leaf1", known_way, way, 4)
            assert len(proposed) == 4
            assert {truth[port] for port in proposed} == {way}
            assert PORTS[100] not in proposed
    assert models.proposed("leaf1", {}, "core1", 4) == []
    assert models.wanted("leaf1", {}) == ()


def test_other_hashes_have_no_model() -> None:
    models: Models[str, str] = Models()
    known = learn(models, ways("h1", "h5", LinuxL4Hash()))
    assert models.affine("leaf1") is False
    assert models.affine("leaf2") is None
    assert models.proposed("leaf1", known, "core1", 4) == []
    assert models.ways("leaf1", known) == []


def test_a_model_that_is_wrong_too_often_is_dropped() -> None:
    models: Models[str, str] = Models()
    known = learn(models, ways("h1", "h5", CrcHash("crc32")))
    for _ in range(100):
        models.checked("leaf1", right=True)
    for _ in range(11):
        models.checked("leaf1", right=False)
    assert models.affine("leaf1")
    models.checked("leaf1", right=False)
    assert models.affine("leaf1") is False
    assert models.proposed("leaf1", known, "core1", 1) == []
    models.forget("leaf1")
    assert models.affine("leaf1") is None


def test_a_way_that_the_model_lacks_is_no_reason_to_propose() -> None:
    models: Models[str, str] = Models()
    learn(models, ways("h1", "h5", CrcHash("crc32")))
    port = random.Random(1).choice(PORTS)
    assert models.proposed("leaf1", {port: "elsewhere"}, "core1", 1) == []
