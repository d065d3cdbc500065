# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.cli.validation`: compare specs on an emulated fabric with a model, fluid or packet.

Runs `paralet run` for every spec and needs root. The fabric is that of the spec where it is `routed`, else `mininet`.
On `routed` the model chooses paths by the next hops that the routers had. With `--model` twice both models are compared
with the same run. With `--calibrate` it prints the `fluid.message_delay_s` that explains most of the difference, and
the deviation that remains; with `--markdown` the tables of docs/notes/model-accuracy.md.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from matplotlib.figure import Figure

from netmodel.printable import printable, printable_lines
from testbed.analysis.observations import Observations, RunRecord
from testbed.analysis.results import OBSERVATIONS
from testbed.errors import TestbedError
from testbed.machine import this_machine
from testbed.progress import Silent, Steps
from testbed.simulate import fluid, packet
from testbed.spec import Experiment, load

_ROUNDS = 8
"""Iterations of Newton's method. Without slices, two are enough."""

Model = Literal["fluid", "packet"]

_PARALET = (sys.executable, "-m", "testbed")


@dataclass(frozen=True, slots=True)
class Agreement:
    """Completion times of one policy with one seed on both fabrics, in seconds."""

    spec: str
    policy: str
    kind: str
    """The policy's kind in the spec, or `paralet` for `ecmp` with several lanes."""
    seed: int
    emulated_s: float
    modelled_s: float
    model: Model = "fluid"

    @property
    def ratio(self) -> float:
        """Model over emulation: below 1 the model is too fast."""
        return self.modelled_s / self.emulated_s


def compare(spec: Path, folder: Path, *models: Model) -> list[Agreement]:
    """Run `spec` emulated once, with results in `folder`, and on each model.

    Raises TestbedError when the emulation fails.
    """
    emulated = load(spec).spec.fabric_kind
    fabric = "routed" if emulated.routers else "mininet"
    argv = [*_PARALET, "run", str(spec), "--fabric", fabric, "--results", str(folder), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"{spec}: paralet run ended with status {done.returncode}: {done.stderr.strip()}")
    reported = json.loads(done.stdout)["policies"]
    return [run for model in models for run in _modelled(spec, folder, model, reported)]


def _modelled(spec: Path, folder: Path, model: Model, reported: Sequence[Mapping[str, Any]]) -> list[Agreement]:
    """The model beside the emulated times of a run that has reported them, by policy."""
    experiment = load(spec, fabric=model)
    parts = [experiment]
    if load(spec).spec.fabric_kind.routers:
        written = (folder / experiment.spec.name / OBSERVATIONS).read_bytes()
        parts = [as_routed(experiment, run) for run in Observations.model_validate_json(written).runs]
    observe = {"fluid": fluid.observe, "packet": packet.observe}[model]
    with Steps(None, every_s=5.0) as steps:
        modelled = {(run.policy, run.seed): run.completion_s for part in parts for run in observe(part, steps).runs}
    kinds = {
        policy.name: "paralet" if not policy.kind.chooses and policy.m > 1 else policy.policy
        for policy in experiment.spec.policies
    }
    return [
        Agreement(
            experiment.spec.name,
            policy["name"],
            kinds[policy["name"]],
            seed,
            emulated_s,
            modelled[policy["name"], seed],
            model,
        )
        for policy in reported
        for seed, emulated_s in zip(experiment.seeds, policy["completions_s"], strict=True)
    ]


def as_routed(experiment: Experiment, run: RunRecord) -> Experiment:
    """The experiment with one policy and one seed, whose switches choose as the routers did in that run."""
    spec = experiment.spec.model_copy(update={"policies": [experiment.policy(run.policy)]})
    return replace(experiment, spec=spec, seeds=(run.seed,), next_hops=run.next_hops)


def message_delay_s(experiment: Experiment, emulated_s: Mapping[tuple[str, int], float]) -> float:
    """The `fluid.message_delay_s` with which the model comes closest to emulated completion times (by policy and seed).

    Least squares of relative deviations, by Gauss and Newton's method: while some slices wait others are sent, so that
    the first of a delay costs less than the rest. 0 where the model is too slow as it is.
    """
    probe_s = 0.01 * min(emulated_s.values())
    delay_s = 0.0
    for _ in range(_ROUNDS):
        now, probed = (_completions(experiment, delay) for delay in (delay_s, delay_s + probe_s))
        slope = {run: (probed[run] - now[run]) / probe_s / emulated_s[run] for run in emulated_s}
        missing = {run: (emulated_s[run] - now[run]) / emulated_s[run] for run in emulated_s}
        squares = sum(each**2 for each in slope.values())
        delay_s = max(0.0, delay_s + sum(slope[run] * missing[run] for run in slope) / squares) if squares else delay_s
    return delay_s


def deviation(experiment: Experiment, emulated_s: Mapping[tuple[str, int], float], delay_s: float) -> float:
    """The mean over all runs of how far the model with that delay is from the emulated time, as a part of it."""
    modelled = _completions(experiment, delay_s)
    return fmean(abs(modelled[run] / took_s - 1) for run, took_s in emulated_s.items())


def _completions(experiment: Experiment, delay_s: float) -> dict[tuple[str, int], float]:
    settings = experiment.spec.fluid.model_copy(update={"message_delay_s": delay_s})
    changed = replace(experiment, spec=experiment.spec.model_copy(update={"fluid": settings}))
    return {(run.policy, run.seed): run.completion_s for run in fluid.observe(changed, Silent()).runs}


def plot(found: Sequence[Agreement]) -> Figure:
    """Every run as a dot: the model's completion time over the emulated one's."""
    from testbed.report.plots import PALETTE

    figure = Figure(figsize=(7.2, 5.4))
    axes = figure.subplots()
    longest = 1.1 * max(max(run.emulated_s, run.modelled_s) for run in found)
    ends = [0.8 * min(min(run.emulated_s, run.modelled_s) for run in found), longest]
    axes.plot(ends, ends, color="#333333", lw=1.2, label="equal")
    axes.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="#DDDDDD", label="10 %")
    for part, style in ((0.85, ":"), (1.15, ":")):
        axes.plot(ends, [part * end for end in ends], color="#999999", lw=1, ls=style)
    specs = list(dict.fromkeys(run.spec for run in found))
    marks = {"ecmp": "o", "paralet": "s", "pinned": "^", "controller": "v", "source_routing": "D"}
    for spec, colour in zip(specs, cycle((*PALETTE, "#333333")), strict=False):
        for kind, mark in marks.items():
            own = [run for run in found if run.spec == spec and run.kind == kind]
            xs, ys = [run.emulated_s for run in own], [run.modelled_s for run in own]
            axes.plot(xs, ys, mark, color=colour, mec="white", ms=7, ls="none")
        axes.plot([], [], "s", color=colour, label=spec.removeprefix("validation_"))
    for kind in dict.fromkeys(run.kind for run in found):
        axes.plot([], [], marks[kind], color="#666666", label=kind)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("completion on the emulated fabric (s)")
    axes.set_ylabel("completion in the model (s)")
    axes.set_title("One dot per run; dotted: 15 %")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


def table(found: Iterable[Agreement]) -> str:
    """A table with a line for every run and model."""
    lines = [f"{'spec':28} {'policy':12} {'seed':>4} {'emulated s':>10} {'model':6} {'model s':>8} {'ratio':>6}"]
    lines += [
        f"{run.spec:28} {run.policy:12} {run.seed:4} {run.emulated_s:10.3f} {run.model:6} {run.modelled_s:8.3f} "
        f"{run.ratio:6.3f}"
        for run in found
    ]
    return "\n".join(lines)


def markdown(found: Sequence[Agreement]) -> str:
    """A table for each spec: a row for each policy, with the ratios of all seeds by model."""
    models, lines = list(dict.fromkeys(run.model for run in found)), list[str]()
    for spec in dict.fromkeys(run.spec for run in found):
        own = [run for run in found if run.spec == spec]
        seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.seed for run in own))
        lines += [f"| policy | {' | '.join(f'`{model}`, seeds {seeds}' for model in models)} |"]
        lines += ["|---" * (1 + len(models)) + "|"]
        for policy in dict.fromkeys(run.policy for run in own):
            cells = [
                ", ".join(f"{run.ratio:.2f}" for run in own if (run.policy, run.model) == (policy, model))
                for model in models
            ]
            lines.append(f"| {policy} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.cli.validation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m testbed.cli.validation experiments/validation/*.yaml --plot validation.png",
    )
    parser.add_argument("specs", nargs="+", type=Path, metavar="SPEC")
    parser.add_argument("--model", action="append", choices=get_args(Model), help="what to compare with (fluid)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder for the emulated runs' results")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a PNG file for the plot")
    parser.add_argument("--calibrate", action="store_true", help="print the best fluid.message_delay_s of each spec")
    parser.add_argument("--markdown", action="store_true", help="print tables for the documentation")
    arguments = parser.parse_args(argv)
    machine, load_average = this_machine(), os.getloadavg()[0]
    models = arguments.model or ["fluid"]
    try:
        found = [run for spec in arguments.specs for run in compare(spec, arguments.results, *models)]
        for spec in arguments.specs if arguments.calibrate else ():
            experiment = load(spec, fabric="fluid")
            emulated = {(run.policy, run.seed): run.emulated_s for run in found if run.spec == experiment.spec.name}
            delay_s = message_delay_s(experiment, emulated)
            before, after = (deviation(experiment, emulated, each_s) for each_s in (0.0, delay_s))
            print(
                printable(f"{spec}: message_delay_s: {delay_s:.3g}; mean deviation {before:.1%}, with it {after:.1%}")
            )
    except (TestbedError, ValueError) as error:
        print(printable(f"paralet: {error}"), file=sys.stderr)
        return 1
    print(printable_lines(markdown(found) if arguments.markdown else table(found)))
    if arguments.markdown:
        print(printable(f"{datetime.now(UTC):%Y-%m-%d}, {machine}; load average {load_average:.0f} before the runs"))
    if arguments.plot is not None:
        plot(found).savefig(arguments.plot, dpi=110, bbox_inches="tight")
    return 0


if __name__ == "__main__":
    sys.exit(main())
