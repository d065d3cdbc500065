# SPDX-License-Identifier: Apache-2.0
"""How long a cut is felt, read off samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.analysis.observations import HappenedEvent, JobRecord, Repinned, RunRecord, Sample
from testbed.analysis.probing_cost import probing_cost
from testbed.analysis.recovery import WINDOW_S, FusedPorts, fused_ports, paces_bps, recovery_s, repinned_s, stalls_s
from testbed.run.run_record import found_by_service
from testbed.spec import load
from tests.testbed.experiments import experiment
from tests.testbed.run.fake_fabric import made_up

ROOT, DATA = Path(__file__).parents[3], Path(__file__).parent / "data"
CUT_S = 1.0
STEP_S = 0.005


@pytest.fixture(scope="module")
def some_run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return made_up(experiment(tmp_path_factory.mktemp("run"))).runs[0]


def sampled(run: RunRecord, *sent: Callable[[float], float]) -> RunRecord:
    """A run in which each port's bytes are a function of time."""
    times = [STEP_S * n for n in range(1, int(3.5 / STEP_S))]
    samples = [Sample(at_s=t, tx_bytes={f"p{n}": int(f(t)) for n, f in enumerate(sent)}) for t in times]
    concerned = [f"p{n}" for n in range(len(sent))]
    event = HappenedEvent(what="cut leaf1:3", at_s=CUT_S, done_s=CUT_S + 0.01, concerned=concerned)
    return run.model_copy(update={"samples": samples, "events": [event]})


def stalls_of(run: RunRecord) -> dict[str, float]:
    return {port: stall_s for (port,), stall_s in stalls_s(run, run.events[0]).items() if stall_s is not None}


def halting(stall_s: float, after: float = 1.0) -> Callable[[float], float]:
    """A megabyte a second, none for a while after the cut, and then so much of it."""
    return lambda t: 1e6 * (min(t, CUT_S) + after * max(0.0, t - CUT_S - stall_s))


@settings(derandomize=True, max_examples=25)
@given(st.floats(0.03, 0.8), st.floats(0.5, 1.0))
def test_a_stall_is_found_to_the_distance_of_samples(some_run: RunRecord, stall_s: float, after: float) -> None:
    (found,) = stalls_of(sampled(some_run, halting(stall_s, after))).values()
    assert abs(found - stall_s) <= WINDOW_S + STEP_S


def test_the_last_host_counts_and_idle_ones_do_not(some_run: RunRecord) -> None:
    run = sampled(some_run, halting(0.1), halting(0.3), lambda t: 0, halting(0.0))
    assert {port for port, stall_s in stalls_of(run).items() if stall_s} == {"p0", "p1"}
    assert recovery_s(run) == [pytest.approx(0.3, abs=WINDOW_S + STEP_S)]


@pytest.mark.parametrize("what", ["kill spine1", "set leaf1:3 to loss 100 %"])
def test_switches_that_die_and_silent_losses_have_recovery_times_too(some_run: RunRecord, what: str) -> None:
    run = sampled(some_run, halting(0.3))
    event = run.events[0].model_copy(update={"what": what})
    mend = HappenedEvent(what="mend leaf1:3", at_s=2.0, done_s=2.0)
    run = run.model_copy(update={"events": [event, mend]})
    assert recovery_s(run) == [pytest.approx(0.3, abs=WINDOW_S + STEP_S)]


def test_a_flow_without_a_stall_has_no_recovery_time(some_run: RunRecord) -> None:
    assert recovery_s(sampled(some_run, halting(0.0), halting(0.0, 0.5))) == [0.0]


def test_without_events_or_samples_there_are_no_stalls(some_run: RunRecord, tmp_path: Path) -> None:
    assert recovery_s(some_run) == []
    run = sampled(some_run, halting(0.1))
    (event,) = run.events
    assert stalls_s(run.model_copy(update={"samples": []}), event) == {}
    assert stalls_s(run, event.model_copy(update={"at_s": 99.0})) == {}


def test_a_port_that_stays_silent_is_not_called_recovered(some_run: RunRecord) -> None:
    assert stalls_of(sampled(some_run, halting(5.0))) == {}


def test_a_host_with_fused_nics_goes_on_by_the_one_that_is_left(some_run: RunRecord) -> None:
    """Two hosts of experiments/routed/dead_plane.yaml, recorded on 2026-11-27: the second plane dies after 1.132 s.

    Its NICs get data again 10 s later, when it has returned. One host had nothing for half a second, the other went on.
    """
    fused = fused_ports(load(ROOT / "experiments" / "routed" / "dead_plane.yaml"))
    names, *rows = (DATA / "dead_plane.txt").read_text().splitlines()
    ports = names.split()[1:]
    samples = [
        Sample(at_s=float(at_s), tx_bytes=dict(zip(ports, map(int, sent), strict=True)))
        for at_s, *sent in map(str.split, rows)
    ]
    event = HappenedEvent(what="kill p2leaf1", at_s=1.132, done_s=1.277, concerned=["p2leaf1:1", "p2leaf2:4"])
    run = some_run.model_copy(update={"samples": samples, "events": [event]})
    assert all(stall_s > 10.0 for stall_s in stalls_of(run).values())  # what each NIC says
    assert set(stalls_s(run, event, fused)) == {("p1leaf1:1", "p2leaf1:1"), ("p1leaf2:4", "p2leaf2:4")}
    assert list(stalls_s(run, event, fused).values()) == [0.0, pytest.approx(0.52, abs=0.01)]
    assert recovery_s(run, fused) == [pytest.approx(0.52, abs=0.01)]
    assert fused_ports(load(ROOT / "experiments" / "routed.yaml")) == []


@pytest.mark.parametrize(
    ("parts", "recovered"), [((0.0,), 0.3), ((0.2,), 0.3), ((0.4,), None), ((1.0,), None), ((0.2, 0.2), None)]
)
def test_nics_with_data_of_their_own_hide_a_stall(
    some_run: RunRecord, parts: tuple[float, ...], recovered: float | None
) -> None:
    """The other NICs of the host go on with these parts of the first one's rate."""
    others = [lambda t, part=part: part * 1e6 * t for part in parts]
    run = sampled(some_run, halting(0.3), *others)
    host = FusedPorts(tuple(f"p{n}" for n in range(1 + len(parts))), shared=False)
    assert recovery_s(run, [host]) == [recovered and pytest.approx(recovered, abs=WINDOW_S + STEP_S)]


def test_paces_are_means_between_events(some_run: RunRecord) -> None:
    run = sampled(some_run, lambda t: 1e6 * min(t, 1.01) + 2.5e5 * max(0.0, t - 1.01))
    run = run.model_copy(update={"jobs": [JobRecord(name="job1", ranks=4, completion_s=3.0)]})
    assert paces_bps(run) == [pytest.approx(8e6, rel=0.02), pytest.approx(2e6, rel=0.02)]
    assert paces_bps(run.model_copy(update={"samples": []})) == [0.0, 0.0]


def test_each_event_has_the_time_until_all_ports_were_known_again(some_run: RunRecord) -> None:
    """The last one before the next event counts: a cut may be heard of in several steps."""
    events = [HappenedEvent(what="cut leaf1:3", at_s=at_s, done_s=at_s) for at_s in (1.0, 5.0, 8.0)]
    times = ((101.5, 0.25), (102.0, 0.5), (106.0, 1.0))
    said = [{"at_s": at_s, "seconds": seconds, "pairs": 2, "lanes": 1} for at_s, seconds in times]
    lossy = [{"at_s": 101.0, "links": ["core1:2 agg3:3"], "lossy": 2, "lanes": 2, "hosts": 2}]
    found = found_by_service({"now_s": 110.0, "measured": {"repinned": said, "lossy": lossy}}, 10.0)
    assert found["lossy_links"][0].at_s == pytest.approx(1.0)
    assert found["repinned"][0] == Repinned(at_s=1.5, seconds=0.25, pairs=2, lanes=1)
    assert repinned_s(some_run.model_copy(update={"events": events, **found})) == [1.5, 2.0, None]
    assert found_by_service({}, 10.0) == {}


def test_probing_costs_bytes_and_the_time_until_the_first_ports(some_run: RunRecord) -> None:
    measured = {"watch_probes": 9.6, "first_ports": {"pairs": 2, "mean_s": 0.1, "longest_s": 0.2}}
    run = some_run.model_copy(update={"service": {"counts": {"probes": 30}, "measured": measured}, "completion_s": 4.0})
    cost = probing_cost(run, 20)
    assert cost is not None
    assert (cost.probes, cost.watches, cost.bytes) == (30, 10, 40 * (66 + 94))
    assert cost.part_of_bytes == pytest.approx(6400 / sum(flow.bytes for flow in run.flows))
    assert (cost.first_ports_s, cost.part_of_time) == (0.2, pytest.approx(0.05))
    assert probing_cost(some_run, 20) is None
