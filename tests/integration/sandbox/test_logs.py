# SPDX-License-Identifier: Apache-2.0
"""What is reported of a failed test has the ends of its logs (`tests/integration/conftest.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

MODULE = Path(__file__).with_name("module_that_fails.py")


class Seen:
    """A plugin of pytest that keeps the report of the test that failed."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.report = report


def test_a_failure_shows_the_ends_of_the_logs_of_its_test() -> None:
    seen = Seen()
    assert pytest.main([str(MODULE), "-p", "no:cacheprovider"], [seen]) == pytest.ExitCode.TESTS_FAILED
    ((name, end),) = (section for section in seen.report.sections if section[0].startswith("end of "))
    assert name == "end of test_that_fails0/results/small/logs/agent-h1.log"
    assert end.splitlines() == [f"line {number}" for number in range(80, 100)]
