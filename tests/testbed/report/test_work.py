# SPDX-License-Identifier: Apache-2.0
"""The work that a report takes: every figure is laid out once, and a cable is not an element of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from testbed import report
from testbed.analysis import metrics
from testbed.analysis.flows import check_flows, flows_of, predicted_path
from testbed.analysis.results import ideal_of
from testbed.report.plots import PLOTS, STYLE, placement, uplink_loads
from testbed.spec import Experiment
from tests.testbed.simulate.small import observe, small


def grown(hosts: int) -> Experiment:
    leaf_spine = {"leaves": 4, "spines": 4, "hosts_per_leaf": hosts // 4, "host_rate": "10 Mbit/s"}
    return small("fluid", topology={"leaf_spine": leaf_spine})


def test_a_figure_is_laid_out_once_and_drawn_once_for_each_of_its_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: Counter[str] = Counter()
    for owner, name in ((Figure, "draw"), (ConstrainedLayoutEngine, "execute")):
        original = getattr(owner, name)

        def counted(*args: object, original: object = original, name: str = name) -> object:
            done[name] += 1
            return original(*args)  # type: ignore[operator]

        monkeypatch.setattr(owner, name, counted)
    experiment = grown(8)
    observations = observe(experiment)
    runs = flows_of(experiment, observations)
    results = metrics.by_policy(experiment, runs)
    report.write(tmp_path, experiment, results, check_flows(experiment, runs), ideal_of(experiment), None)
    plots = len(list(tmp_path.glob("*.png")))
    assert plots == sum(plot.tells(experiment, results) for plot in PLOTS) > 4
    assert done == {"draw": 2 * plots, "execute": plots}


def test_the_fabric_has_as_many_elements_with_four_times_the_hosts() -> None:
    def elements(hosts: int) -> int:
        (axes,) = placement(grown(hosts), (), 1.0).axes
        return sum(len(collection.get_paths()) for collection in axes.collections) + len(axes.lines) + len(axes.texts)

    assert elements(400) == elements(100)


def test_names_of_many_switches_do_not_cover_each_other() -> None:
    def names(leaves: int) -> tuple[int, int, float]:
        leaf_spine = {"leaves": leaves, "spines": 40, "hosts_per_leaf": 2, "host_rate": "10 Mbit/s"}
        made = small("fluid", topology={"leaf_spine": leaf_spine}, placement={"ranks": 2})
        results = metrics.by_policy(made, flows_of(made, observe(made)))
        (axes,) = placement(made, results, 1.0).axes
        heat_map = uplink_loads(made, results, 1.0)
        return len(axes.texts), len(heat_map.axes[0].get_yticks()), float(heat_map.get_figheight())

    (few, few_rows, low), (many, many_rows, high) = names(12), names(48)
    assert few == 12 + 2 * 12
    assert many == 0
    assert few_rows == many_rows == 12
    assert low == high


def test_labels_are_within_their_figures() -> None:
    """Also in the smallest heat map, whose colour bar is shorter than many a label."""
    made = small("fluid", topology={"leaf_spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 1, "host_rate": "1G"}})
    results = metrics.by_policy(made, flows_of(made, observe(made)))[:1]
    for plot in PLOTS:
        if plot.tells(made, results):
            with mpl.rc_context(mpl.RcParams(STYLE)):
                figure = plot.draw(made, results, ideal_of(made))
                FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
            whole = figure.bbox.padded(1.0)
            for axes in figure.axes:
                for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts):
                    if not text.get_text():
                        continue
                    box = text.get_window_extent()
                    corners = (box.x0, box.y0), (box.x1, box.y1)
                    assert all(whole.contains(*corner) for corner in corners), (plot.name, text.get_text())


def test_three_tiers_are_drawn_above_each_other() -> None:
    made = small("fluid", topology={"fat_tree": {"k": 4, "host_rate": "10 Mbit/s"}}, placement={"ranks": 2})
    (axes,) = placement(made, (), 1.0).axes
    heights = {text.get_text().strip(): text.get_position()[1] for text in axes.texts}
    assert heights["core4"] > heights["agg8"] > heights["leaf8"] > heights["h16"]
    assert len(axes.texts) == 16 + 20


def test_predicted_loads_are_the_bytes_of_flows_along_their_paths() -> None:
    experiment = grown(32)
    links = metrics.uplinks(experiment.topology)
    for flows in flows_of(experiment, observe(experiment)):
        expected: Counter[object] = Counter()
        for flow, count in flows.sent:
            for port in predicted_path(flows.instance, flow, flows.routes):
                expected[port] += count
        found = flows.predicted_loads(link.port for link in links)
        assert found == [expected[link.port] for link in links]
        assert sum(found) > 0
