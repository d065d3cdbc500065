# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import defaultdict

import pytest
from markupsafe import Markup


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots of reports are left empty: drawing them takes longer than most runs on a model.

    For tests of commands. `analysis/test_results.py` and the first test of `cli/test_cluster.py` look at every plot.
    """
    from testbed.report import clusters, page  # only here: most tests do not import matplotlib

    monkeypatch.setattr(page, "_figures", lambda *_: defaultdict(Markup))
    monkeypatch.setattr(clusters, "save_and_embed", lambda *_: Markup())
