# SPDX-License-Identifier: Apache-2.0
"""The plots of `paralet cluster`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sim.cluster import CAUSES
from testbed.report import clusters
from testbed.report.plots import STYLE


@pytest.mark.parametrize("plot", [clusters.completion, clusters.failures])
def test_a_legend_covers_no_bar(plot: Any) -> None:
    """Bars of equal height leave no free corner."""
    times = SimpleNamespace(mean=5.0)
    metrics = {
        name: SimpleNamespace(running_s=times, waiting_s=times, failures=dict.fromkeys(CAUSES, 3.0))
        for name in ("ecmp", "balanced", "vclos")
    }
    with mpl.rc_context(mpl.RcParams(STYLE)):
        figure = plot(metrics)
        FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    (axes,) = figure.axes
    legend = axes.get_legend().get_window_extent()
    assert not any(legend.overlaps(bar.get_window_extent()) for bar in axes.patches)
