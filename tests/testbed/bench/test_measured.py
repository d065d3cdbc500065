# SPDX-License-Identifier: Apache-2.0
"""The bench of measured paths: captured flows against what the service said, and its tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from netmodel import leaf_spine
from testbed.analysis.observations import LaneCounters, RankLane, RunRecord, SeenFlow
from testbed.bench.measured import (
    FABRICS,
    FAILURES,
    Compared,
    Ran,
    compared,
    fabrics_table,
    failures_table,
    model_of,
    spec_of,
)
from testbed.spec import load
from tests.testbed.experiments import experiment
from tests.testbed.run.fake_fabric import made_up
from tests.testbed.simulate.small import observe

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def some_run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return made_up(experiment(tmp_path_factory.mktemp("run"))).runs[0]


def test_flows_are_compared_where_a_switch_had_a_choice(some_run: RunRecord) -> None:
    """Not those of acknowledgements, nor those whose ports the service did not give."""
    topology = leaf_spine(2, 2, 1, 10**9)
    here, there = (str(host.nics[0].address) for host in topology.hosts)
    counts = {"tx_bytes": 1 << 20, **dict.fromkeys(("tx_packets", "flowlets", "retransmits", "timeouts"), 1)}
    counters = LaneCounters(peer=there, lane=0, port=0, port_method="", rtt_s=None, **counts)
    ports = (50000, 50001, 50002)
    lanes = [RankLane(rank=0, lane=counters.model_copy(update={"port": port})) for port in ports]
    seen = [SeenFlow(src=here, dst=there, src_port=port, dst_port=4791, ports=["leaf1:2"]) for port in ports]
    seen[0] = seen[0].model_copy(update={"ports": ["leaf1:2", "spine2:2"]})  # it has gone by spine2 before
    seen.append(SeenFlow(src=there, dst=here, src_port=50000, dst_port=4791, ports=["leaf2:2"]))
    run = some_run.model_copy(update={"lanes": lanes, "seen": seen})
    path = ["h1:1", "leaf1:{}", "spine1:2", "leaf2:1"]
    said = {(here, there, port): [hop.format(up) for hop in path] for port, up in ((50000, 2), (50001, 3))}
    assert compared(topology, run, said) == Compared(flows=3, planned=2, same=1)


def test_the_tables_have_a_line_for_each_run() -> None:
    runs = [
        Ran("two tiers", 1, over_ideal=1.0625, over_model=1.03, compared=Compared(64, 60, 60), probes=1234),
        Ran("x", 2, "why"),
    ]
    *_, first, second = fabrics_table(runs)
    assert first.startswith("| two tiers | 1.06 | 1.03 | 60 of 64 | 60 of 60 | 1,234 | 0.00% |")
    assert second.startswith("| x | refused: why |")
    calm = Ran("nothing fails", 1, completion_s=10.0, verified=True)
    cut = Ran("cut", 1, completion_s=11.0, verified=True, repinned_s=(0.84, None), lossy=("core1:2 to agg3:3",))
    *_, nothing, failed = failures_table(calm, [cut])
    assert nothing == "| nothing fails | 1.00 | none | 0 | - | - | - |"
    assert failed == "| cut | 1.10 | none | 0 | 0.8 s | - | core1:2 to agg3:3 |"


@pytest.mark.parametrize("name", FABRICS)
def test_the_specs_are_valid(name: str, tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec_of("measured", 1, "1 MiB", FABRICS[name])))
    assert load(file).spec.measures


def test_the_model_knows_of_shared_links_and_of_a_router_that_dies(tmp_path: Path) -> None:
    """Both hosts of a leaf have one uplink between them from then on."""
    dies = FABRICS["three tiers, agg1 dies"]
    file = tmp_path / "spec.yaml"
    completions = {}
    for name, changes in (("lives", {**dies, "events": []}), ("dies", dies)):
        real = spec_of("measured", 1, "6 MiB", changes)
        file.write_text(yaml.safe_dump(real))
        model = model_of(real, load(file).topology)
        file.write_text(yaml.safe_dump(model))
        completions[name] = observe(load(file)).runs[0].completion_s
    assert completions["dies"] > 1.5 * completions["lives"]


def test_parallel_links_are_refused_where_loopbacks_answer(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    parallel = FABRICS["two tiers, parallel links"] | {"routers": {"unnumbered": True}}
    file.write_text(yaml.safe_dump(spec_of("measured", 1, "1 MiB", parallel)))
    with pytest.raises(ValueError, match=r"answers that name routers but not their ports .* give pinning: hash"):
        load(file)


def test_the_experiments_on_failures_are_there() -> None:
    for name in FAILURES:
        spec = load(ROOT / "experiments" / "routed" / f"{name}.yaml").spec
        assert [event.at_s for event in spec.events] == [5.0, 11.0]
        assert any(policy.kind.service for policy in spec.policies)
