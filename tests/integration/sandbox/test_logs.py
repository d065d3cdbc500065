# SPDX-License-Identifier: Apache-2.0
"""What is reported of a failed test: the ends of its logs, and what its programs said (the files `conftest.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

MODULE = Path(__file__).with_name("module_that_fails.py")


class Seen:
    """A plugin of pytest that keeps the sections of what is reported of failed tests, by the names of these."""

    def __init__(self) -> None:
        self.sections: dict[str, list[tuple[str, str]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            name = report.nodeid.rpartition("::")[2]
            self.sections[name] = [(title, text) for title, text in report.sections if not title.startswith("Captured")]


def test_a_failure_shows_the_ends_of_the_logs_of_its_test_and_what_programs_said() -> None:
    seen = Seen()
    assert pytest.main([str(MODULE), "-p", "no:cacheprovider"], [seen]) == pytest.ExitCode.TESTS_FAILED
    log = ("end of test_that_fails0/results/small/logs/agent-h1.log", "\n".join(f"line {n}" for n in range(80, 100)))
    assert {name: sorted(sections) for name, sections in seen.sections.items()} == {
        "test_that_fails": [log, ("standard error of the program", "its log is ...\n")],
        "test_that_takes_too_long": [("standard error of the program", "bringing up leaf1\n")],
    }
