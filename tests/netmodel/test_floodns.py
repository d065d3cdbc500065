# SPDX-License-Identifier: Apache-2.0
"""floodns' topology.properties: the released format, and the error of every kind of bad line."""

import pytest

from netmodel import leaf_spine
from netmodel.floodns import read_properties

SMALL = """num_nodes=12
num_undirected_edges=14
switches=incl_range(0,3)
switches_which_are_tors=incl_range(0,1)
cores=incl_range(2,3)
servers=incl_range(4,11)
undirected_edges=incl_range(0:1-2:3,4:7-0,8:11-1)
link_data_rate_bit_per_ns=100
"""


def test_a_small_file_is_a_leaf_spine() -> None:
    assert read_properties(SMALL) == leaf_spine(2, 2, 4, 100 * 10**9)


def test_the_form_of_the_original_simulator_is_read_too() -> None:
    """As in example_leaf_spine_servers of github.com/snkas/floodns: sets, and rates below 1 Gbit/s."""
    text = """# Two leaves
num_nodes=8
num_undirected_edges=8
switches=set(0,1,2,3)
switches_which_are_tors=set(0,1)
servers=set(4,5,6,7)
undirected_edges=set(0-2,0-3,1-2,1-3,0-4,0-5,1-6,1-7)

link_data_rate_bit_per_ns=0.1
"""
    assert read_properties(text) == leaf_spine(2, 2, 2, 10**8)
    assert read_properties(text.replace("set(4,5,6,7)", "set(7,7,6,5,4)")) == leaf_spine(2, 2, 2, 10**8)
    for old, new, expected in (
        ("0.1", "map(0->2: 0.1, 2->0: 0.2)", "t:9: 'map(0->2: 0.1, 2->0: 0.2)' is not one rate for all links"),
        ("set(4,5,6,7)", "set()", "t:7: every ToR needs one edge to each other switch"),
        ("set(4,5,6,7)", "set(4,5,6,8)", "t:6: '8' are not nodes of 0 to 7"),
        ("set(4,5,6,7)", "set(4:7,5,6,7)", "t:6: '4:7' is not a whole number"),
    ):
        with pytest.raises(ValueError, match=r"^t:") as refusal:
            read_properties(text.replace(old, new, 1), "t")
        assert str(refusal.value).startswith(expected)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("num_nodes=12", "num_nodes 12", "t.properties:1: must be a key, '=' and a value"),
        ("cores", "switches", "t.properties:5: must be a key, '=' and a value, and each key once"),
        ("servers=", "hosts=", "t.properties:1: has no servers"),
        ("num_nodes=12", "num_nodes=11", "t.properties:6: '4:11' are not nodes of 0 to 10"),
        ("incl_range(4,11)", "range(4,11)", "t.properties:6: must be incl_range(...) or set(...), not 'range(4,11)'"),
        ("_ns=100", "_ns=x", "t.properties:8: 'x' is not one rate for all links"),
        ("4:7-0", "4:6-0", "t.properties:7: every server needs one edge, to a ToR"),
        ("0:1-2:3", "0:1-2", "t.properties:7: every ToR needs one edge to each other switch"),
        ("8:11-1", "7:11-1", "t.properties:7: edge 7-1 is given twice"),
        ("8:11-1", "8:11-1,2-3", "t.properties:7: edge 2-3 is given twice, or has no ToR"),
        ("4:7-0,8:11-1", "4:8-0,9:11-1", "t.properties:7: every ToR needs as many servers"),
        ("4:7-0", "4:x-0", "t.properties:7: 'x' is not a whole number"),
    ],
)
def test_a_bad_line_is_one_sentence_with_its_number(old: str, new: str, expected: str) -> None:
    assert old in SMALL
    with pytest.raises(ValueError, match=r"t\.properties:") as refusal:
        read_properties(SMALL.replace(old, new, 1), "t.properties")
    assert str(refusal.value).startswith(expected)


@pytest.mark.parametrize("rate", ["1e999999", "1e999990", "-1", "0", "0.0", "1_0", "1.", "0.0000000001", "٣", ""])
def test_a_rate_is_decimal_digits_above_0(rate: str) -> None:
    """Also where the power of ten of a short number would take minutes to compute."""
    with pytest.raises(ValueError, match=r"t:8: .* is not one rate for all links"):
        read_properties(SMALL.replace("_ns=100", f"_ns={rate}"), "t")
