# SPDX-License-Identifier: Apache-2.0
"""`paralet cluster --replay`: the jobs of a cluster spec as real traffic, beside what the simulation says."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from netmodel.printable import printable
from testbed.cli.run import GIVEN, require_fabric, run_in_sandbox
from testbed.cli.tables import console, table
from testbed.errors import InputError, sentence_of

if TYPE_CHECKING:
    from sim.cluster import Outcome
    from testbed.run.replay import Record
    from testbed.run.replay_plan import ReplayPlan
    from testbed.spec.cluster import ClusterSpec


def replay(spec: "ClusterSpec", folder: Path, *, as_json: bool) -> bool:
    """Replay the jobs of seed 1, print and write the comparison. Returns whether every byte was right.

    Raises InputError for a spec that cannot be replayed and for a machine that lacks something, and TestbedError.
    """
    from testbed.run.replay import Record
    from testbed.run.replay_plan import plan_replay
    from testbed.spec.fabrics import FABRICS

    plan, results = plan_replay(spec)
    require_fabric(FABRICS[plan.fabric])
    logs, record_file = folder / "logs", folder / "replay-record.json"
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(sentence_of(error)) from error
    argv = [sys.executable, "-m", "testbed.run.replay", "--plan", str(GIVEN), "--out", str(record_file)]
    run_in_sandbox([*argv, "--log-dir", str(logs)], logs, plan.model_dump_json())
    record = Record.model_validate_json(record_file.read_text())
    outcomes = {(name, outcome.job.name): outcome for name, result in results.items() for outcome in result.outcomes}
    assert spec.replay is not None  # by plan_replay
    summary = _summary(spec.name, spec.replay.speedup, plan, record, outcomes)
    (folder / "replay.json").write_text(json.dumps(summary, indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    else:
        _print(summary)
        click.echo(printable(f"Every job: {folder / 'replay.json'}"))
    return not any(job["wrong_bytes"] for strategy in summary["strategies"] for job in strategy["jobs"])


def _summary(
    name: str, speedup: float, plan: "ReplayPlan", record: "Record", outcomes: "dict[tuple[str, str], Outcome]"
) -> dict[str, Any]:
    """What replay.json has. Times are in simulated seconds."""

    def jobs(index: int) -> Iterator[dict[str, Any]]:
        strategy, measured = plan.strategies[index], record.strategies[index]
        for job, got in zip(strategy.jobs, measured.jobs, strict=True):
            outcome = outcomes[strategy.name, job.name]
            assert outcome.running_s is not None  # the plan has jobs that ended
            assert outcome.completion_s is not None
            running_s = speedup * (got.end_s - got.start_s)
            completion_s = speedup * got.end_s - outcome.job.arrival_s
            yield {
                "job": job.name,
                "gpus": outcome.job.gpus,
                "leaves": outcome.leaves,
                "pattern": outcome.job.pattern,
                "start_s": {"simulated": outcome.start_s, "measured": speedup * got.start_s},
                "end_s": {"simulated": outcome.end_s, "measured": speedup * got.end_s},
                "running_s": _pair(outcome.running_s, running_s),
                "completion_s": _pair(outcome.completion_s, completion_s),
                "after": [strategy.jobs[place].name for place in job.after],
                "bytes": len(job.hosts) * job.workload.bytes if len(job.hosts) > 1 else 0,
                "wrong_bytes": got.wrong_bytes,
                "retransmits": got.retransmits,
                "uplink_bytes": got.uplink_bytes,
            }

    return {
        "spec": name,
        "fabric": plan.fabric,
        "speedup": speedup,
        "rate_bps": plan.rate_bps,
        "strategies": [
            {
                "name": strategy.name,
                "isolated": strategy.isolated,
                "jobs": list(jobs(index)),
                "uplink_bytes": record.strategies[index].uplink_bytes,
                "strays": record.strategies[index].strays,
                "overruns": record.strategies[index].overruns,
            }
            for index, strategy in enumerate(plan.strategies)
        ],
    }


def _pair(simulated_s: float, measured_s: float) -> dict[str, float]:
    return {"simulated": simulated_s, "measured": measured_s, "ratio": measured_s / simulated_s}


def _print(summary: dict[str, Any]) -> None:
    out = console()
    for strategy in summary["strategies"]:
        scale = f"in simulated seconds, {summary['speedup']:g} in a second"
        title = f"{strategy['name']}: simulated and measured, {scale}"
        rows = table(
            title, ["job"], ["GPUs", "leaves", "JRT", "measured", "ratio", "JCT", "measured", "ratio", "bytes"]
        )
        for job in strategy["jobs"]:
            times = [
                text
                for pair in (job["running_s"], job["completion_s"])
                for text in (f"{pair['simulated']:,.0f}", f"{pair['measured']:,.0f}", f"{pair['ratio']:.3f}")
            ]
            verdict = Text("WRONG", style="bold red") if job["wrong_bytes"] else Text("verified", style="green")
            rows.add_row(job["job"], str(job["gpus"]), str(job["leaves"]), *times, verdict)
        out.print(rows)
        ratios = [[job[kind]["ratio"] for job in strategy["jobs"]] for kind in ("running_s", "completion_s")]
        if ratios[0]:
            out.print(f"Mean ratio: JRT {fmean(ratios[0]):.3f}, JCT {fmean(ratios[1]):.3f}")
        if strategy["isolated"]:
            strays = sum(strategy["strays"].values())
            out.print(f"Packets that left their job's links, and were dropped: {strays:,}")
        if strategy["overruns"]:
            lost = strategy["overruns"]
            slow = f"This machine was too slow for the rate: the emulation itself dropped {lost:,} packets."
            out.print(Text(printable(slow), style="yellow"))
