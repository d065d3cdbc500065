# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import format_rate, parse_rate


@pytest.mark.parametrize(
    ("written", "bps"),
    [
        ("20 Mbit/s", 20_000_000),
        ("20M", 20_000_000),
        ("100G", 100_000_000_000),
        ("2.5 Gbit/s", 2_500_000_000),
        ("1.000001M", 1_000_001),
        ("9k", 9_000),
        ("9 Kbps", 9_000),
        (" 1T ", 10**12),
        ("400bit/s", 400),
        ("12", 12),
        (12, 12),
    ],
)
def test_rates_are_parsed_from_common_notations(written: object, bps: int) -> None:
    assert parse_rate(written) == bps


@pytest.mark.parametrize(
    "written", ["20 MB/s", "20m", "fast", "", "-1M", "1e9", "1_000", "١M", 1.5, True, None, [1], "M", "20 Mbit/s/s"]
)
def test_an_invalid_rate_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="is not a rate: write it like '20 Mbit/s'"):
        parse_rate(written)


@pytest.mark.parametrize("written", [0, "0", -1, "0 Gbit/s", 10**15 + 1, "1001T"])
def test_rates_out_of_range_are_refused(written: object) -> None:
    with pytest.raises(ValueError, match="must lie between 1 bit/s and 1000 Tbit/s"):
        parse_rate(written)


def test_a_fraction_of_a_bit_is_refused() -> None:
    with pytest.raises(ValueError, match="not a whole number of bits"):
        parse_rate("0.0001k")


@given(st.integers(1, 10**15))
def test_a_formatted_rate_reads_back(bps: int) -> None:
    assert parse_rate(format_rate(bps)) == bps
