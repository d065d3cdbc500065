# SPDX-License-Identifier: Apache-2.0
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel import (
    SpecError,
    Topology,
    TopologySpec,
    derived_hash_seed,
    derived_mac,
    dump_topology,
    leaf_spine,
    load_topology,
    parse_yaml,
)
from tests.netmodel.sample import random_fabric

COMPACT = """\
leaf_spine:
  leaves: 4
  spines: 2
  hosts_per_leaf: 3
  host_rate: 20 Mbit/s
  fabric_rate: 40M
  parallel_links: 2
  mtu_bytes: 1500
  name: lab
"""
SPELT_OUT = """\
name: pair
mtu_bytes: 4200
hosts:
  - name: h1
    nics: [{address: 10.0.0.1}]
  - name: h2
    nics:
      - {address: 10.0.0.2, mac: 02:00:00:00:00:02, name: nic0}
switches:
  - {name: leaf1, role: leaf}
  - {name: leaf2, role: leaf, dpid: 77, hash_seed: 5}
links:
  - {a: "h1:1", b: "leaf1:1", rate: 1G}
  - {a: "h2:1", b: "leaf2:1", rate: 1000000000}
  - {a: "leaf1:2", b: "leaf2:2", rate: 2.5G}
"""


def read(text: str) -> Topology:
    return parse_yaml(text, TopologySpec, file="t.yaml").topology


def test_a_leaf_spine_is_built_from_its_parameters() -> None:
    assert read(COMPACT) == leaf_spine(4, 2, 3, 20_000_000, 40_000_000, 2, 1500, name="lab")


def test_defaults_are_those_of_the_builder() -> None:
    text = "leaf_spine: {leaves: 1, spines: 1, hosts_per_leaf: 1, host_rate: 5}"
    assert read(text) == leaf_spine(1, 1, 1, 5)


def test_omitted_values_are_derived() -> None:
    pair = read(SPELT_OUT)
    nic = pair.host("h1").nics[0]
    assert (nic.name, nic.mac) == ("nic0", derived_mac(nic.address))
    assert pair.host("h2").nics[0].mac == "02:00:00:00:00:02"
    assert (pair.switch("leaf1").dpid, pair.switch("leaf1").hash_seed) == (1, derived_hash_seed(1))
    assert (pair.switch("leaf2").dpid, pair.switch("leaf2").hash_seed) == (77, 5)
    assert [each.rate_bps for each in pair.links] == [10**9, 10**9, 2_500_000_000]


@given(st.integers(0, 10**6), st.lists(st.none() | st.floats(0, 1), min_size=1))
def test_a_dumped_topology_loads_equal(seed: int, delays_s: list[float | None]) -> None:
    topology, _ = random_fabric(seed)
    links = zip(topology.links, itertools.cycle(delays_s), strict=False)
    topology = replace(topology, links=tuple(replace(link, delay_s=delay_s) for link, delay_s in links))
    assert read(dump_topology(topology)) == topology


def test_delays_of_links_are_read() -> None:
    pair = read(SPELT_OUT.replace("1G", "1G, delay: 5 us").replace("2.5G", "2.5G, delay: 0.002"))
    assert [each.delay_s for each in pair.links] == [5e-6, None, 2e-3]


@pytest.mark.parametrize(
    ("text", "delays_s"),
    [
        (
            "leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 1, host_rate: 1G, host_delay: 1 us, fabric_delay: 0}",
            {"h leaf": 1e-6, "leaf spine": 0.0},
        ),
        (
            "leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 1, host_rate: 1G, fabric_delay: 2 us, "
            "optical_switches: 1}",
            {"h leaf": None, "leaf ocs": 2e-6, "spine ocs": 2e-6},
        ),
        (
            "clos: {pods: 2, leaves: 1, aggs: 1, cores_per_agg: 1, hosts_per_leaf: 1, host_rate: 1G, host_delay: 1 us, "
            "agg_delay: 2 us, core_delay: 3 us, planes: 2}",
            {f"h p{plane}leaf": 1e-6 for plane in (1, 2)}
            | {f"p{plane}leaf p{plane}agg": 2e-6 for plane in (1, 2)}
            | {f"p{plane}agg p{plane}core": 3e-6 for plane in (1, 2)},
        ),
        (
            "fat_tree: {k: 2, host_rate: 1G, host_delay: 1 us, agg_delay: 2 us, core_delay: 300 ns}",
            {"h leaf": 1e-6, "leaf agg": 2e-6, "agg core": 300e-9},
        ),
        (
            "rail_optimised: {domains: 2, gpus_per_domain: 1, rail_rate: 1G, hb_rate: 9G, leaves_per_rail: 2, pods: 2, "
            "spines: 1, rail_delay: 1 us, hb_delay: 1 ns, fabric_delay: 2 us, core_delay: 3 us}",
            {"d1g rail1l": 1e-6, "d2g rail1l": 1e-6, "d1g hb": 1e-9, "d2g hb": 1e-9, "rail1l agg": 2e-6}
            | {"agg core": 3e-6},
        ),
        (
            "rail_only: {domains: 2, gpus_per_domain: 1, rail_rate: 1G, hb_rate: 9G, hb_delay: 1 ns}",
            {"d1g rail": None, "d2g rail": None, "d1g hb": 1e-9, "d2g hb": 1e-9},
        ),
        (
            "direct_connect: {hosts: 3, degree: 2, rate: 1G, delay: 7 us, look_ahead: true}",
            {"h flip": 7e-6, "flip ocs": 7e-6},
        ),
    ],
)
def test_builders_give_delays_to_each_tier(text: str, delays_s: dict[str, float | None]) -> None:
    found = {
        (" ".join(end.node.rstrip("0123456789") for end in (link.a, link.b)), link.delay_s) for link in read(text).links
    }
    assert found == set(delays_s.items())


@pytest.mark.parametrize("written", ["5", "5 min", "us", "-1 us", "1e-6 s"])
def test_a_delay_that_is_no_time_is_refused_with_its_line(written: str) -> None:
    with pytest.raises(SpecError, match=r"t\.yaml:13: links\[0\]\.delay: '.*' is not a time: write it like '50 us'"):
        read(SPELT_OUT.replace("1G", f"1G, delay: '{written}'"))
    with pytest.raises(SpecError, match=r"t\.yaml:13: links\[0\]\.delay: must be less than or equal to 1"):
        read(SPELT_OUT.replace("1G", "1G, delay: 2 s"))


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    fabric = leaf_spine(3, 2, 2, 123_456, 10**11, parallel_links=2)
    file = tmp_path / "t.yaml"
    file.write_text(dump_topology(fabric))
    assert load_topology(file) == fabric


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (COMPACT, "spines: 2", "spines: 0", "3: leaf_spine.spines: spines is 0, but must lie in 1..65535"),
        (COMPACT, "20 Mbit/s", "0", "5: leaf_spine.host_rate: rate 0 must lie between"),
        (COMPACT, "40M", "-1", "6: leaf_spine.fabric_rate: rate -1 must lie between"),
        (COMPACT, "1500", "90", "8: leaf_spine.mtu_bytes: mtu_bytes is 90"),
        (COMPACT, "leaves: 4", "leaves: '4'", "2: leaf_spine.leaves: must be a valid integer, not '4'"),
        (COMPACT, "leaves: 4", "leafs: 4", "2: leaf_spine.leafs: unknown key; did you mean 'leaves'?"),
        (COMPACT, "leaf_spine:", "leafspine:", "1: leafspine: unknown key; did you mean 'leaf_spine'?"),
        (COMPACT, "name: lab", "name: 5", "9: leaf_spine.name: must be a valid string, not 5"),
        (COMPACT, "leaf_spine:", "name: x\nleaf_spine:", "1: name: give either leaf_spine or name, not both"),
        (SPELT_OUT, "name: pair\n", "", "1: a topology needs one of leaf_spine, clos, fat_tree, rail_optimised,"),
        (SPELT_OUT, "10.0.0.2", "10.0.0.1", "8: hosts[1].nics[0].address: hosts 'h1' and 'h2' both have address"),
        (SPELT_OUT, "10.0.0.2", "10.0.0", "8: hosts[1].nics[0].address: '10.0.0' is not an IP address"),
        (SPELT_OUT, "10.0.0.2", "fd00::2", "8: hosts[1].nics[0].address: host 'h2' has address fd00::2, but all"),
        *(
            (
                SPELT_OUT,
                "10.0.0.2",
                address,
                f"8: hosts[1].nics[0].address: {address} is {what}: give the NIC an address",
            )
            for address, what in [
                ("0.0.0.0", "the address of no host"),
                ("224.0.0.1", "a multicast address"),
                ("169.254.1.1", "a link-local address, which routers do not forward"),
                ("255.255.255.255", "reserved"),
                ("fe80::1", "a link-local address, which routers do not forward"),
                ("ff02::1", "a multicast address"),
            ]
        ),
        (SPELT_OUT, "10.0.0.2", "7", "8: hosts[1].nics[0].address: 7 is not an IP address"),
        (SPELT_OUT, "02:00:00:00:00:02", "2", "8: hosts[1].nics[0].mac: must be a valid string"),
        (
            SPELT_OUT,
            "role: leaf}",
            "role: laef}",
            "10: switches[0].role: must be 'leaf', 'spine', 'agg', 'core' or 'ocs', not 'laef'",
        ),
        (SPELT_OUT, "77", "1", "11: switches[1].dpid: switches 'leaf1' and 'leaf2' both have dpid 1"),
        (SPELT_OUT, "role: leaf}", "role: leaf, dpid: -1}", "10: switches[0].dpid: dpid -1"),
        (SPELT_OUT, '"h2:1"', '"h3:1"', "14: links[1].a: a link ends at h3:1, but there is no host or switch 'h3'"),
        (SPELT_OUT, '"leaf2:1"', '"leaf1:1"', "14: links[1].b: two links are plugged into port leaf1:1"),
        (SPELT_OUT, '"h2:1"', "h2", "14: links[1].a: 'h2' is not a port: write it like 'leaf1:3'"),
        (SPELT_OUT, "1000000000", "0", "14: links[1].rate: rate 0 must lie"),
        (SPELT_OUT, '"leaf1:2"', '"leaf2:3"', "15: links[2]: link leaf2:3 to leaf2:2 joins switch 'leaf2' to itself"),
    ],
)
def test_errors_name_line_and_field(text: str, old: str, new: str, expected: str) -> None:
    assert text.count(old) >= 1
    with pytest.raises(SpecError) as refusal:
        read(text.replace(old, new, 1))
    assert str(refusal.value).startswith(f"t.yaml:{expected}")


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (
            COMPACT,
            {"leaves: 4": "leaves: 0", "spines: 2": "spines: 0"},
            ["2: leaf_spine.leaves: leaves is 0, but", "3: leaf_spine.spines: spines is 0, but"],
        ),
        (
            SPELT_OUT,
            {"name: pair": "name: 5air", "10.0.0.2": "10.0.0.1", "77": "1", '"h2:1"': '"h3:1"'},
            [
                "1: name: topology name '5air' must start with a letter",
                "8: hosts[1].nics[0].address: hosts 'h1' and 'h2' both have address",
                "11: switches[1].dpid: switches 'leaf1' and 'leaf2' both have dpid 1",
                "14: links[1].a: a link ends at h3:1, but there is no host or switch 'h3'",
            ],
        ),
        (
            SPELT_OUT,
            {"10.0.0.2": "10.0.0", "1000000000": "0"},
            ["8: hosts[1].nics[0].address: '10.0.0' is not", "14: links[1].rate: rate 0 must lie"],
        ),
    ],
)
def test_all_mistakes_of_a_topology_are_reported(text: str, changes: dict[str, str], expected: list[str]) -> None:
    for old, new in changes.items():
        text = text.replace(old, new, 1)
    with pytest.raises(SpecError) as refusal:
        read(text)
    for line, start in zip(str(refusal.value).splitlines(), expected, strict=True):
        assert line.startswith(f"t.yaml:{start}")
