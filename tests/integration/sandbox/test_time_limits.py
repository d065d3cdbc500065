# SPDX-License-Identifier: Apache-2.0
"""Time limits of sandboxed modules, whose tests run in an inner pytest (`tests/integration/conftest.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from emul import sandbox

MODULE = Path(__file__).with_name("module_with_limits.py")


class Seen:
    """A plugin of pytest that keeps the time limits of the collected tests, in seconds, and the reports."""

    def __init__(self) -> None:
        self.limits_s: list[float] = []
        self.reports: list[pytest.TestReport] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        markers = [item.get_closest_marker("timeout") for item in session.items]
        self.limits_s = [marker.args[0] for marker in markers if marker is not None]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)


def test_a_module_may_take_as_long_as_all_its_tests_may(pytestconfig: pytest.Config) -> None:
    seen = Seen()
    assert pytest.main([str(MODULE), "--collect-only", "-p", "no:cacheprovider"], [seen]) == pytest.ExitCode.OK
    assert seen.limits_s == 2 * [7 + float(pytestconfig.getini("timeout"))]


def test_a_module_that_takes_longer_fails_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pytest-timeout raises in a signal handler must not end pytest with an internal error."""
    monkeypatch.setattr(sandbox, "run", lambda *_arguments, **_options: pytest.fail("Timeout (>307.0s)"))
    seen = Seen()
    assert pytest.main([str(MODULE), "-p", "no:cacheprovider"], [seen]) == pytest.ExitCode.TESTS_FAILED
    assert [report.outcome for report in seen.reports] == ["failed", "failed"]
    assert all("Timeout (>307.0s)" in report.longreprtext for report in seen.reports)
