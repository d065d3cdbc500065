# SPDX-License-Identifier: Apache-2.0
"""The expected data of collectives, made another way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.nccl.collectives import COLLECTIVES, POISON, ROOT, Operation, fit
from testbed.nccl.elements import COPY, REDUCTIONS, TYPES, ElementType, sent, values, wrong_elements

F64 = np.float64


def numbers(element: ElementType, data: bytes) -> np.ndarray[tuple[int], np.dtype[F64]]:
    """The elements of `data`, by numpy."""
    if element.name == "bfloat16":
        wide = np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).astype(F64)
    return np.frombuffer(data, dtype=element.name).astype(F64)


def by_hand(operation: Operation, rank: int) -> np.ndarray[tuple[int], np.dtype[F64]]:
    """The rank's expected data, computed in float64 from the data of all ranks."""
    ranks, share = operation.ranks, operation.share
    data = np.stack([numbers(operation.element, operation.sent(peer)) for peer in range(ranks)])
    mine = slice(rank * share, (rank + 1) * share)
    reduced = {
        "sum": lambda: data.sum(axis=0),
        "max": lambda: data.max(axis=0),
        "min": lambda: data.min(axis=0),
        "avg": lambda: data.mean(axis=0) if operation.element.is_float else data.sum(axis=0) // ranks,
        COPY: lambda: data[0],
    }[operation.redop]()
    match operation.kind.name:
        case "all_reduce":
            return np.asarray(reduced)
        case "all_gather":
            return data.reshape(-1)
        case "reduce_scatter":
            return np.asarray(reduced[mine])
        case "broadcast":
            return data[ROOT]
        case "reduce":
            poison = bytes([POISON]) * operation.size
            return np.asarray(reduced) if rank == ROOT else numbers(operation.element, poison)
        case "all_to_all":
            return data[:, mine].reshape(-1)
        case _:
            return data[rank - 1]


@pytest.mark.parametrize("element", TYPES.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_expected_data_match_the_definition_of_the_collective(name: str, element: ElementType) -> None:
    for ranks, elements in ((2, 140_000), (3, 3_000), (5, 10)):
        for redop in REDUCTIONS if COLLECTIVES[name].reduces else (COPY,):
            operation = Operation(COLLECTIVES[name], element, redop, ranks, elements)
            for rank in range(ranks):
                assert np.array_equal(numbers(element, operation.expected(rank)), by_hand(operation, rank))


@pytest.mark.parametrize("element", TYPES.values(), ids=lambda each: each.name)
@given(st.sampled_from([*REDUCTIONS, COPY]), st.integers(2, 64))
def test_values_are_exact_and_so_are_sums(element: ElementType, redop: str, ranks: int) -> None:
    allowed = list(values(element, redop, ranks))
    assert 1 < len(allowed) <= 256
    data = element.encode(allowed)
    width = element.width
    assert [element.decode(data[at : at + width]) for at in range(0, len(data), width)] == allowed
    if redop in ("sum", "avg"):
        assert ranks * max(allowed) // (ranks if redop == "avg" and element.is_float else 1) <= element.exact


def test_an_average_in_floats_is_exact_after_each_rounding() -> None:
    """As NCCL makes it: every element times 1/ranks, in the type of the elements."""
    for ranks in (3, 5, 7, 49):
        share = np.float32(1) / np.float32(ranks)
        for value in values(TYPES["float32"], "avg", ranks):
            assert float(np.float32(value) * share) == value // ranks
    assert len(values(TYPES["float16"], "avg", 3)) > 100


def test_ranks_send_different_data_without_power_of_two_periods() -> None:
    element = TYPES["float32"]
    assert len({sent(element, "sum", 64, rank, 1000) for rank in range(64)}) == 64
    for rank in range(3):
        data = sent(element, "sum", 3, rank, 200_000)
        for shift in (2**step for step in range(17)):
            assert data[shift * element.width :] != data[: -shift * element.width]


@pytest.mark.parametrize(
    ("name", "factor"),
    # nccl-tests, doc/PERFORMANCE.md, for 4 ranks
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("all_to_all", 0.75),
        ("send_recv", 1.0),
    ],
)
def test_bandwidths_follow_the_definition_of_nccl_tests(name: str, factor: float) -> None:
    operation = Operation(COLLECTIVES[name], TYPES["float32"], "none", 4, 1000)
    assert operation.bandwidths(0.5) == (pytest.approx(8000), pytest.approx(8000 * factor))
    assert operation.count == (250 if name in ("all_gather", "reduce_scatter", "all_to_all") else 1000)


def test_reduce_in_place_leaves_the_data_of_other_ranks() -> None:
    operation = Operation(COLLECTIVES["reduce"], TYPES["int32"], "sum", 3, 30)
    assert operation.expected_in_place(ROOT) == operation.expected(ROOT)
    assert operation.expected_in_place(1) == operation.sent(1)


@given(st.integers(1, 10**9), st.integers(2, 64), st.sampled_from(list(TYPES.values())))
def test_sizes_fit_all_ranks(size: int, ranks: int, element: ElementType) -> None:
    fitted = fit(size, ranks, element)
    assert fitted % (element.width * ranks) == 0
    assert size <= fitted < size + element.width * ranks


@given(st.integers(1, 20_000), st.data())
def test_all_wrong_elements_are_found(elements: int, draw: st.DataObject) -> None:
    data = sent(TYPES["float16"], "sum", 2, 0, elements)
    assert wrong_elements(bytearray(data), data, 2) == []
    places = draw.draw(st.sets(st.integers(0, elements - 1), min_size=1, max_size=20))
    spoilt = bytearray(data)
    for place in places:
        spoilt[2 * place + draw.draw(st.integers(0, 1))] ^= 0x40
    assert wrong_elements(spoilt, data, 2) == sorted(places)
