# SPDX-License-Identifier: Apache-2.0
"""Traces on small clusters: no job is lost, work and GPUs are conserved, and queues keep their order."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdn.isolation import integer_program
from sim.cluster import (
    FIDELITIES,
    NETWORKS,
    PATTERNS,
    PLACEMENTS,
    QUEUES,
    AnyAllocation,
    FidelityName,
    FlowPaths,
    Job,
    NetworkName,
    Outcome,
    PlacementName,
    QueueName,
    Result,
    Scenario,
    Shape,
    State,
    TraceShape,
    generate,
    simulate,
)

SMALL = Shape(leaves=4, spines=4, servers_per_leaf=2, gpus_per_server=2)
PODS = Shape(leaves=4, spines=4, servers_per_leaf=2, gpus_per_server=2, pods=2, cores=2)
"""As many GPUs, in two pods; with two planes in some cases."""
ALWAYS = settings(derandomize=True, max_examples=80, deadline=None)


@st.composite
def traces(draw: st.DrawFn) -> list[Job]:
    sizes = st.integers(1, 18)  # 16 GPUs are there
    times = st.floats(0.1, 10.0)
    count = draw(st.integers(0, 12))
    arrivals = np.cumsum(draw(st.lists(st.floats(0.0, 5.0), min_size=count, max_size=count))).tolist()
    return [
        Job(
            f"job{number}",
            arrival_s,
            draw(sizes),
            draw(times),
            draw(st.floats(0.0, 1.0)),
            draw(st.sampled_from(PATTERNS)),
            draw(st.none() | times),
        )
        for number, arrival_s in enumerate(arrivals)
    ]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    shape = draw(st.sampled_from((SMALL, SMALL, PODS, replace(PODS, planes=2))))
    placement = draw(st.sampled_from([name for name in PLACEMENTS if shape.pods == 1 or name != "ocs_vclos"]))
    networks = {"vclos": NETWORKS, "ocs_vclos": ("ideal", "reserved")}.get(
        placement, tuple(name for name in NETWORKS if name != "reserved")
    )
    return Scenario(
        shape,
        placement,
        draw(st.sampled_from(networks)),
        draw(st.sampled_from((*QUEUES, "las", "las"))),  # it has the most cases
        draw(st.sampled_from(FIDELITIES)),
        lanes=draw(st.integers(1, 4)),
        rounds=draw(st.integers(1, 2)),
        optical_switches=2,
        service_gpu_s=draw(st.floats(0.1, 40.0)),
        checkpoint_s=draw(st.floats(0.0, 3.0)),
        seed=draw(st.integers(0, 9)),
    )


@ALWAYS
@given(traces(), scenarios(), st.none() | st.floats(0.0, 30.0))
def test_no_job_is_lost_and_work_is_conserved(jobs: list[Job], scenario: Scenario, until_s: float | None) -> None:
    calls: list[None] = []
    until_s = float("inf") if until_s is None else until_s
    result = simulate(jobs, scenario, until_s=until_s, tell=lambda: calls.append(None))
    assert [outcome.job for outcome in result.outcomes] == jobs
    held = used = 0.0
    for outcome in result.outcomes:
        assert outcome.state in get_args(State)
        assert bool(outcome.reason) == (outcome.state == "refused")
        assert (outcome.start_s is not None) == (outcome.state in ("ended", "running", "preempted"))
        assert (outcome.end_s is not None) == (outcome.state == "ended")
        assert not outcome.pauses or scenario.queue == "las"
        assert (outcome.state == "preempted") == (outcome.paused_s == float("inf"))
        moments = [time_s for pause in outcome.pauses for time_s in pause]
        assert moments == sorted(moments)
        if outcome.start_s is not None:
            assert outcome.job.arrival_s <= outcome.start_s <= result.end_s
            paused_s = sum(min(to_s, result.end_s) - from_s for from_s, to_s in outcome.pauses)
            end_s = result.end_s if outcome.end_s is None else outcome.end_s
            used += outcome.job.gpus * (end_s - outcome.start_s - paused_s)
            held += outcome.job.gpus if outcome.state == "running" else 0
        if outcome.running_s is not None:
            run_s = outcome.job.run_s
            worst = 16.0  # no more flows are on a link than there are GPUs
            restored_s = len(outcome.pauses) * scenario.checkpoint_s  # at most: it can be preempted again meanwhile
            assert run_s * (1 - 1e-9) - 1e-6 <= outcome.running_s
            assert outcome.running_s - restored_s <= run_s * (1 + outcome.job.communication * (worst - 1)) + 1e-6
            if scenario.network in ("ideal", "replanned") or outcome.leaves == 1:
                assert run_s - 1e-6 <= outcome.running_s <= run_s + restored_s + 1e-6
    planned = scenario.network in ("pinned", "replanned") and scenario.placement != "ocs_vclos"
    assert result.paths_set == 0 or planned
    assert result.paths_moved == 0 or (scenario.network == "replanned" and scenario.fidelity != "average")
    states = [outcome.state for outcome in result.outcomes]
    assert len(calls) == states.count("ended") + states.count("refused")
    assert result.gpu_seconds == pytest.approx(used)
    assert result.idle_at_end <= 16 - held
    times = [time_s for time_s, _ in result.worst_flows]
    assert times == sorted(times)
    assert all(flows >= -1e-9 for _, flows in result.worst_flows)
    if until_s == float("inf"):
        assert set(states) <= {"ended", "refused"}
        assert result.idle_at_end == 16
        assert not result.worst_flows or result.worst_flows[-1][1] == pytest.approx(0.0, abs=1e-9)


def test_the_same_seed_gives_the_same_result() -> None:
    jobs = generate(TraceShape(60, 100.0, largest=16), 3)
    scenario = Scenario(SMALL, "scattered", "ecmp")
    assert simulate(jobs, scenario) == simulate(jobs, scenario)
    assert simulate(jobs, scenario) != simulate(jobs, replace(scenario, seed=2))


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_starts_are_told_with_their_allocations_and_paths(fidelity: FidelityName) -> None:
    """A ring over the four servers of two leaves has two flows from each leaf to the other."""
    starts: dict[int, tuple[AnyAllocation, FlowPaths | None]] = {}
    jobs = [Job("job", 0.0, 8, 10.0, 0.5, "hierarchical_ring"), Job("small", 1.0, 2, 10.0, 0.5)]
    scenario = Scenario(SMALL, network="paralet", lanes=3, fidelity=fidelity)
    result = simulate(jobs, scenario, started=lambda number, *what: starts.update({number: what}))
    assert result == simulate(jobs, scenario)  # listening changes nothing
    allocation, paths = starts[0]
    assert len(allocation.gpus) == 8
    assert paths is not None
    assert paths.links.shape == (4, 3, 2)
    assert starts[1][0].leaves == [2]
    assert starts[1][1] is None


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_job_alone_takes_as_long_as_its_worst_link(fidelity: FidelityName) -> None:
    """Two leaves with one spine: a ring over whole servers puts 2 flows on each link."""
    one_spine = Shape(leaves=2, spines=1, servers_per_leaf=1, gpus_per_server=2)
    job = Job("job", 3.0, 4, 100.0, 0.5, "hierarchical_ring")
    outcome = simulate([job], Scenario(one_spine, fidelity=fidelity)).outcomes[0]
    assert (outcome.start_s, outcome.leaves) == (3.0, 2)
    assert outcome.running_s == pytest.approx(50 + 2 * 50)
    assert outcome.completion_s == pytest.approx(150)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_halving_and_doubling_sends_the_least_over_the_longest_distance(fidelity: FidelityName) -> None:
    """Two GPUs under each of two leaves: a third of the collective crosses the one spine, two flows on a link."""
    one_spine = Shape(leaves=2, spines=1, servers_per_leaf=1, gpus_per_server=2)
    job = Job("job", 0.0, 4, 10.0, 0.6, "halving_doubling")
    (outcome,) = simulate([job], Scenario(one_spine, "packed", "ecmp", fidelity=fidelity)).outcomes
    assert outcome.running_s == pytest.approx(10 + 0.6 * 10 / 3)


def starts(queue: QueueName, jobs: list[Job]) -> dict[str, float | None]:
    result = simulate(jobs, Scenario(SMALL, "packed", "ideal", queue))
    return {outcome.job.name: outcome.start_s for outcome in result.outcomes}


BLOCKED = [
    Job("half", 0.0, 8, 10.0),
    Job("all", 1.0, 16, 10.0, deadline_s=90.0),
    Job("short", 2.0, 8, 5.0, deadline_s=80.0),
    Job("long", 3.0, 4, 50.0, deadline_s=70.0),
]


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("fifo", {"half": 0.0, "all": 10.0, "short": 20.0, "long": 20.0}),
        ("fewest_first", {"half": 0.0, "all": 57.0, "short": 2.0, "long": 7.0}),
        ("edf", {"half": 0.0, "all": 57.0, "short": 2.0, "long": 7.0}),
        ("backfill", {"half": 0.0, "all": 10.0, "short": 2.0, "long": 20.0}),
        ("las", {"half": 0.0, "all": 57.0, "short": 2.0, "long": 7.0}),
    ],
)
def test_queues_keep_their_order(queue: QueueName, expected: dict[str, float]) -> None:
    """`half` ends at 10, so `all` could start then. `short` fits beside `half`, and `long` beside neither pair."""
    assert starts(queue, BLOCKED) == pytest.approx(expected)


LAS = Scenario(SMALL, "packed", "ideal", "las", service_gpu_s=64.0, checkpoint_s=3.0)


def test_a_job_that_had_much_service_gives_way_and_goes_on_later() -> None:
    """`old` has had 64 GPU-seconds at 4, so `new` takes its GPUs at 5. It goes on at 11, with 3 and 15 s to do."""
    old, new = simulate([Job("old", 0.0, 16, 20.0), Job("new", 5.0, 8, 6.0)], LAS).outcomes
    assert (new.start_s, new.end_s, new.pauses) == (5.0, 11.0, ())
    assert old.pauses == ((5.0, 11.0),)
    assert old.end_s == pytest.approx(11.0 + 3.0 + 15.0)
    assert (old.waiting_s, old.running_s) == pytest.approx((6.0, 23.0))


def test_a_job_is_preempted_when_its_service_reaches_the_threshold_and_not_before() -> None:
    first, second = simulate([Job("first", 0.0, 16, 9.0), Job("second", 1.0, 16, 3.0)], LAS).outcomes
    assert (second.start_s, second.end_s) == pytest.approx((4.0, 7.0))
    assert first.pauses == ((pytest.approx(4.0), pytest.approx(7.0)),)


def test_only_jobs_in_the_way_are_preempted_the_latest_first() -> None:
    jobs = [Job(f"old{n}", float(n) / 8, 4, 100.0) for n in range(4)]  # have had 64 GPU-seconds after 16 s
    outcomes = simulate([*jobs, Job("new", 20.0, 8, 10.0)], LAS).outcomes
    assert [len(outcome.pauses) for outcome in outcomes] == [0, 0, 1, 1, 0]
    assert outcomes[4].start_s == 20.0
    assert [outcome.end_s for outcome in outcomes[2:4]] == pytest.approx([113.25, 113.375])


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("network", ["ideal", "reserved", "pinned"])
def test_preemption_loses_no_work(fidelity: FidelityName, network: NetworkName) -> None:
    """No other job communicates, so `old` runs for 20 s and 3 s of restoration, whenever it was stopped."""
    placement: PlacementName = "vclos" if network == "reserved" else "packed"
    for moment in (4.5, 9.0, 13.0, 17.5, 19.9):
        jobs = [Job("old", 0.0, 16, 20.0, 0.6, "pairwise_alltoall"), Job("new", moment, 1, 7.0)]
        scenario = replace(LAS, placement=placement, network=network, fidelity=fidelity, rounds=2)
        old, new = simulate(jobs, scenario).outcomes
        assert new.start_s == moment
        assert old.running_s == pytest.approx(23.0, abs=1e-6)


def test_a_job_that_cannot_be_placed_preempts_nobody() -> None:
    """`all` needs every GPU, and `young` may not be preempted yet: `old` keeps its GPUs until then."""
    jobs = [Job("old", 0.0, 8, 100.0), Job("young", 10.0, 8, 100.0), Job("all", 10.5, 16, 5.0)]
    old, young, everything = simulate(jobs, LAS).outcomes
    assert young.start_s == 10.0
    assert everything.start_s == pytest.approx(18.0)  # when `young` has had 64 GPU-seconds
    assert [len(outcome.pauses) for outcome in (old, young, everything)] == [1, 1, 0]


def test_short_jobs_gain_from_preemption_without_known_durations() -> None:
    """Heavy-tailed durations: least attained service shortens the median JCT of first come, first served."""
    jobs = generate(TraceShape(400, 60.0, correlation=0.3, largest=16), 1)
    fifo, las = (simulate(jobs, Scenario(Shape(4, 8, 4, 2), "packed", "ideal", queue)) for queue in ("fifo", "las"))
    medians = [np.median([outcome.completion_s or 0.0 for outcome in result.outcomes]) for result in (fifo, las)]
    assert medians[1] < 0.5 * medians[0]
    assert any(outcome.pauses for outcome in las.outcomes)


def test_deadlines_and_not_arrivals_decide_with_edf() -> None:
    jobs = [Job("first", 0.0, 16, 10.0), Job("late", 1.0, 16, 10.0, deadline_s=99.0), Job("none", 2.0, 16, 10.0)]
    jobs.append(Job("early", 3.0, 16, 10.0, deadline_s=50.0))
    assert starts("edf", jobs) == pytest.approx({"first": 0.0, "early": 10.0, "late": 20.0, "none": 30.0})


def test_backfilling_uses_what_the_first_job_will_not_need() -> None:
    jobs = [Job("half", 0.0, 8, 10.0), Job("most", 1.0, 12, 10.0), Job("rest", 2.0, 4, 99.0), Job("no", 2.5, 4, 99.0)]
    assert starts("backfill", jobs) == pytest.approx({"half": 0.0, "most": 10.0, "rest": 2.0, "no": 20.0})


def result_of(scenario: Scenario, *jobs: Job) -> Result:
    return simulate(jobs, scenario)


def test_failed_placements_are_counted_by_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    single = Shape(leaves=2, spines=1, servers_per_leaf=1, gpus_per_server=2)
    small = [Job(f"small{n}", 0.0, 2, 10.0 + n) for n in range(2)]
    busy = result_of(Scenario(single), *small, Job("job", 1.0, 4, 5.0))
    assert busy.failures == {"busy": 2}  # on arrival, and when one has ended
    ones = [Job(f"one{n}", 0.0, 1, 10.0 if n % 2 else 20.0) for n in range(4)]
    locality = result_of(Scenario(single), *ones, Job("job", 11.0, 2, 5.0))
    assert locality.failures == {"locality": 1}
    assert locality.outcomes[-1].start_s == 20.0
    assert result_of(Scenario(single, "relaxed"), *ones, Job("job", 11.0, 2, 5.0)).outcomes[-1].start_s == 11.0
    links = Shape(leaves=2, spines=1, servers_per_leaf=2, gpus_per_server=1)
    ones = [Job(f"one{n}", 0.0, 1, 1.0 if n == 0 else 3.0) for n in range(3)]  # leave a GPU on each leaf, then others
    pairs = [Job("pair", 2.0, 2, 8.0), Job("job", 4.0, 2, 5.0)]
    network = result_of(Scenario(links, "vclos", "reserved"), *ones, *pairs)
    assert network.failures == {"network": 1}
    assert [outcome.start_s for outcome in network.outcomes[3:]] == [2.0, 10.0]

    def undecided(*_: object) -> None:
        raise integer_program.Undecided("the time is over")

    monkeypatch.setattr("sdn.isolation.vclos.within_server", undecided)
    late = result_of(Scenario(links, "vclos", "reserved"), Job("a", 0.0, 1, 1.0))
    assert late.failures == {"undecided": 1}
    assert [outcome.state for outcome in late.outcomes] == ["waiting"]


@pytest.mark.parametrize("placement", ["vclos", "ocs_vclos"])
def test_a_job_whose_shape_does_not_fit_lacks_no_links(placement: PlacementName) -> None:
    """A server of two leaves is busy, and all links are free. Twelve GPUs need three leaves with two idle servers."""
    jobs = [Job(f"job{number}", 0.0, 2, 20.0 if number in (0, 2) else 5.0) for number in range(4)]  # on two leaves
    result = result_of(Scenario(SMALL, placement, "reserved"), *jobs, Job("job", 1.0, 12, 5.0))
    assert result.failures == {"busy": 2, "shape": 1}  # on arrival and after the first end; after the second
    assert result.outcomes[-1].start_s == 20.0


def test_a_job_that_never_fits_is_refused_with_the_reason_and_others_go_on() -> None:
    result = simulate([Job("big", 0.0, 17, 1.0), Job("job", 0.0, 1, 1.0)], Scenario(SMALL))
    refused, ended = result.outcomes
    assert refused.state == "refused"
    assert "asks for 17 GPUs and the whole cluster has 16" in refused.reason
    assert (ended.state, ended.end_s) == ("ended", 1.0)


@pytest.mark.parametrize(
    ("placement", "network", "sentence"),
    [
        ("packed", "reserved", "needs a placement that reserves links"),
        ("ocs_vclos", "ecmp", "its network is reserved"),
    ],
)
def test_a_network_that_does_not_fit_the_placement_is_refused(placement: str, network: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Scenario(SMALL, placement, network)  # type: ignore[arg-type]


def test_replanning_is_refused_where_a_leaf_has_more_gpus_than_spines() -> None:
    with pytest.raises(ValueError, match="4 GPUs of a leaf need as many spines"):
        Scenario(replace(SMALL, spines=3), "packed", "replanned")


def added_s(outcomes: list[Outcome]) -> float:
    """The mean time that contention adds."""
    return float(np.mean([(outcome.running_s or 0.0) - outcome.job.run_s for outcome in outcomes]))


def test_pins_avoid_other_jobs_without_reserving_links() -> None:
    """Two interleaved all-to-alls on all GPUs: pins share links less than hashes, and re-planning not at all."""
    jobs = [Job(name, 0.0, 8, 100.0, 0.5, "pairwise_alltoall") for name in ("one", "two")]
    added = {}
    for network in ("ecmp", "pinned", "replanned"):
        runs = [simulate(jobs, Scenario(SMALL, "scattered", network, seed=seed)) for seed in range(1, 9)]
        added[network] = added_s([outcome for run in runs for outcome in run.outcomes])
    assert added["ecmp"] > added["pinned"] > added["replanned"] == pytest.approx(0.0, abs=1e-6)


def test_replanning_moves_running_flows_and_pins_do_not() -> None:
    rng = np.random.default_rng(1)
    jobs = [Job(f"job{n}", float(n), 5, float(rng.uniform(50, 100)), 0.9, "pairwise_alltoall") for n in range(12)]
    pinned, replanned = (
        simulate(jobs, Scenario(SMALL, "scattered", network, fidelity="steps", rounds=3))
        for network in ("pinned", "replanned")
    )
    assert pinned.paths_moved == 0 < pinned.paths_set
    assert replanned.paths_moved > 0
    assert replanned.paths_set > 2 * pinned.paths_set  # in each of three rounds again
    assert all(outcome.running_s == pytest.approx(outcome.job.run_s) for outcome in replanned.outcomes)


def test_isolation_removes_what_hash_collisions_add() -> None:
    shape = Shape(16, 32, 4, 8)
    jobs = generate(TraceShape(500, 100.0, correlation=0.3), 1)
    ecmp, lanes, own = (
        added_s(simulate(jobs, Scenario(shape, placement, network)).outcomes)
        for placement, network in (("packed", "ecmp"), ("packed", "paralet"), ("vclos", "reserved"))
    )
    assert ecmp > 2 * lanes > 0
    assert own == pytest.approx(0.0, abs=1e-6)


def test_a_trace_has_the_distributions_that_it_was_asked_for() -> None:
    shape = TraceShape(4000, 120.0, correlation=0.5, largest=64)
    jobs = generate(shape, 1)
    sizes, durations = np.array([job.gpus for job in jobs]), np.array([job.run_s for job in jobs])
    assert np.diff([0.0, *(job.arrival_s for job in jobs)]).mean() == pytest.approx(120, rel=0.05)
    assert sizes.max() == 64
    assert (sizes == 1).mean() == pytest.approx(11136 / 18732, abs=0.02)
    assert (sizes == 8).mean() == pytest.approx(4257 / 18732, abs=0.02)
    assert durations.min() == 1_000
    assert durations.max() <= 100_000
    assert np.corrcoef(np.log(sizes), np.log(durations))[0, 1] > 0.2
    own = generate(replace(shape, correlation=0.0, pattern="ring"), 1)
    assert {job.pattern for job in own} == {"ring"}
    spread = np.corrcoef(np.log([job.gpus for job in own]), np.log([job.run_s for job in own]))[0, 1]
    assert abs(spread) < 0.05
    assert {job.pattern for job in jobs} == {"halving_doubling", "hierarchical_ring", "pairwise_alltoall"}
