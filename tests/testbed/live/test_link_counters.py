# SPDX-License-Identifier: Apache-2.0
"""Counters of switch ports from text: the formats of exporters and of gNMIc, rates, and bad lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.live.link_counters import LinkCounters, Neighbour, PortRates, Sample, samples


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (  # snmp_exporter
            'ifHCOutOctets{ifDescr="Ethernet1/1",ifIndex="1",ifName="Eth1/1",instance="leaf1"} 1.5e+09',
            Sample("leaf1", "Eth1/1", "tx_bytes", 1.5e9, None),
        ),
        ('ifHighSpeed{ifName="Eth1/1",instance="leaf1"} 100000', Sample("leaf1", "Eth1/1", "rate_bps", 1e11, None)),
        (  # node_exporter on a switch that runs Linux, with a Prometheus timestamp
            'node_network_transmit_bytes_total{device="swp1"} 12 1700000000500',
            Sample("", "swp1", "tx_bytes", 12.0, 1_700_000_000.5),
        ),
        ('node_network_speed_bytes{device="swp1"} 1.25e+09', Sample("", "swp1", "rate_bps", 1e10, None)),
        (  # OpenMetrics with a timestamp and an exemplar
            'rx_bytes_total{switch="s\\"1",port="3"} 7 1700000000.25 # {trace="x"} 1',
            Sample('s"1', "3", "rx_bytes", 7.0, 1_700_000_000.25),
        ),
        (  # gnmic's output to Prometheus
            'interfaces_interface_state_counters_out_discards{interface_name="ethernet-1/1",source="10.0.0.1:57400"} 4',
            Sample("10.0.0.1:57400", "ethernet-1/1", "drops", 4.0, None),
        ),
        (  # gnmic's event format; 64-bit integers are strings
            json.dumps(
                {
                    "name": "ports",
                    "timestamp": 1_700_000_000_000_000_000,
                    "tags": {"interface_name": "Ethernet1", "source": "leaf2"},
                    "values": {"/interfaces/interface/state/counters/in-octets": "99", "/other/leaf": "up"},
                }
            ),
            Sample("leaf2", "Ethernet1", "rx_bytes", 99.0, 1.7e9),
        ),
        (  # the same of LLDP
            json.dumps(
                {
                    "name": "neighbours",
                    "timestamp": 1_700_000_000_000_000_000,
                    "tags": {"interface_name": "Ethernet1", "neighbor_id": "7", "source": "leaf2"},
                    "values": {"/lldp/interfaces/interface/neighbors/neighbor/state/system-name": "spine1"},
                }
            ),
            Neighbour("leaf2", "Ethernet1", "spine1"),
        ),
    ],
)
def test_lines_of_common_exporters_are_read(line: str, expected: Sample | Neighbour) -> None:
    assert list(samples(line)) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# TYPE ifHCOutOctets counter",
        "# EOF",
        "go_goroutines 12",
        'up{instance="leaf1"} 1',
        '{"sync-response": true}',
        "[]",
    ],
)
def test_other_lines_are_ignored(line: str) -> None:
    assert list(samples(line)) == []
    assert LinkCounters().read(line, 0.0) is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("leaf1 sent much", "neither a sample of the OpenMetrics format nor JSON"),
        ('tx_bytes{port="1} 3', "neither a sample"),
        ("tx_bytes{port=1} 3", "its labels are not name="),
        ('tx_bytes{port="1"} many', "'many' is not a number"),
        ('tx_bytes{port="1"} NaN', "NaN is not a count"),
        ('tx_bytes{port="1"} -3', "-3 is not a count"),
        ("tx_bytes 3", "tx_bytes without a label that names the port, such as interface_name"),
        ('{"tags": {}', "not valid JSON"),
        ('{"a": 1}', "an object without `tags` and `values`"),
        ('{"tags": {"port": "1"}, "values": {"out-octets": true}}', "true is not a number"),
        ('{"tags": {"port": "1"}, "values": {"out-octets": [1]}}', "is not a number"),
    ],
)
def test_a_bad_line_is_a_sentence_with_its_number(line: str, why: str) -> None:
    counters = LinkCounters()
    counters.read("# a comment", 0.0)
    said = counters.read(line, 0.0)
    assert said is not None
    assert said.startswith("line 2 of the counters: ")
    assert why in said
    assert counters.rates() == []


@given(st.text() | st.binary().map(lambda data: data.decode(errors="replace")))
def test_any_line_is_read_or_refused(line: str) -> None:
    said = LinkCounters().read(line, 0.0)
    assert said is None or (said.startswith("line 1 of the counters: ") and len(said) < 300)


def test_rates_are_between_the_last_two_samples() -> None:
    counters = LinkCounters()
    for line, now_s in (
        ('ifHighSpeed{ifName="1",instance="leaf1"} 10', 0.0),
        ('ifHCOutOctets{ifName="1",instance="leaf1"} 0', 0.0),
        ('ifHCInOctets{ifName="1",instance="leaf1"} 0 100', 7.0),
        ('ifHCOutOctets{ifName="2",instance="leaf1"} 5', 0.0),
        ('ifOutDiscards{ifName="2",instance="leaf1"} 5', 0.0),
        ('ifHCOutOctets{ifName="1",instance="leaf1"} 1000000', 2.0),
        ('ifHCInOctets{ifName="1",instance="leaf1"} 500000 102', 7.1),
    ):
        assert counters.read(line, now_s) is None
    busy, idle = counters.rates()
    assert busy == PortRates("leaf1", "1", 4e6, 2e6, 0, 1e7)
    assert busy.utilisation == 0.4
    assert idle == PortRates("leaf1", "2", None, None, 5, None)
    assert idle.utilisation is None


def test_a_counter_that_begins_anew_has_no_rate_until_the_next_sample() -> None:
    counters = LinkCounters()
    for value, now_s in ((100, 0.0), (10, 1.0)):
        counters.read(f'tx_bytes{{port="1"}} {value}', now_s)
    assert counters.rates()[0].tx_bps is None
    counters.read('tx_bytes{port="1"} 20', 2.0)
    assert counters.rates()[0].tx_bps == 80.0
    counters.read('tx_bytes{port="1"} 999', 2.0)  # the same time again: as it was
    assert counters.rates()[0].tx_bps == 80.0
