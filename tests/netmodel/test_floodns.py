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


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("num_nodes=12", "num_nodes 12", "t.properties:1: must be a key, '=' and a value"),
        ("cores", "switches", "t.properties:5: must be a key, '=' and a value, and each key once"),
        ("servers=", "hosts=", "t.properties:1: has no servers"),
        ("num_nodes=12", "num_nodes=11", "t.properties:6: '4:11' are not nodes of 0 to 10"),
        ("incl_range(4,11)", "range(4,11)", "t.properties:6: must be incl_range(...), not 'range(4,11)'"),
        ("_ns=100", "_ns=x", "t.properties:8: 'x' is not a whole number"),
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
