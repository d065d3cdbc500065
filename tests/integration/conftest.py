# SPDX-License-Identifier: Apache-2.0
"""Runs every module marked `sandboxed` in a sandbox of its own, so that its tests can bring fabrics up.

The outer pytest runs a module's selected tests by an inner pytest inside `emul.sandbox` and replays its reports.
Everything that a test leaves behind disappears with the namespaces of its module. What is reported of a test that fails
ends with the ends of its logs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from emul import probe, sandbox
from tests.integration import logs

REPORTS_VARIABLE = "PARALET_TEST_REPORTS"
"""Set for an inner pytest: the file that takes its reports, one JSON object per line."""

results_key = pytest.StashKey[dict[str, list[dict[str, Any]]]]()
ran_key = pytest.StashKey[dict[Path, str]]()
folder_key = pytest.StashKey[Path]()
began_key = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sandboxed: run the module in a sandbox, where fabrics may be brought up")
    config.stash[results_key] = defaultdict(list)
    config.stash[ran_key] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Inner pytest: append the report to the file."""
    if (path := os.environ.get(REPORTS_VARIABLE)) and sandbox.inside():
        with Path(path).open("a") as reports:
            reports.write(json.dumps(report._to_json()) + "\n")


@pytest.fixture(scope="session", autouse=True)
def _folder_of_all_tests(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> None:
    pytestconfig.stash[folder_key] = tmp_path_factory.getbasetemp()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Append to the report of a failure the ends of the logs that were written since the item began."""
    report = yield
    began_s = item.stash.setdefault(began_key, call.start)
    if report.failed and (folder := item.config.stash.get(folder_key, None)):
        report.sections += [(f"end of {name}", end) for name, end in logs.ends(folder, began_s)]
    return report


@cache
def able() -> bool:
    """Whether this machine can run sandboxed modules."""
    return all(finding.ok for finding in probe())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Outer pytest: long modules first, so that none is left for the end, when other workers have nothing to do.

    Gives every item of a sandboxed module the sum of their time limits, as the first waits for all.
    """
    if sandbox.inside():
        return
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    limits_s: defaultdict[Path, float] = defaultdict(float)
    sandboxed = [item for item in items if item.get_closest_marker("sandboxed")]
    for item in sandboxed:
        own = item.get_closest_marker("timeout")
        limits_s[item.path] += own.args[0] if own else float(config.getini("timeout"))
    for item in sandboxed:
        item.add_marker(pytest.mark.timeout(limits_s[item.path]), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Outer pytest: run the item's module in a sandbox unless it has been, and replay the item's reports."""
    if item.get_closest_marker("sandboxed") is None or sandbox.inside() or not able():
        return None  # the usual protocol, which skips with the reason where the machine cannot run it
    ran = item.config.stash[ran_key]
    if item.path not in ran:
        ran[item.path] = run_module(item.session, item.path)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = item.config.stash[results_key].get(item.nodeid, [])
    if not any(data["when"] == "teardown" for data in reports):  # every test's last report
        reports = [*reports, lost(item, ran[item.path])]
    for data in reports:
        item.ihook.pytest_runtest_logreport(report=pytest.TestReport._from_json(data))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # Fixtures that earlier tests set up and the next test does not share must be torn down now.
    item.session._setupstate.teardown_exact(nextitem)
    return True


def run_module(session: pytest.Session, module: Path) -> str:
    """Run the session's items of one module in a sandbox; its output."""
    config = session.config
    nodes = [item.nodeid for item in session.items if item.path == module]
    pausing = bool(config.getoption("pause_on_failure"))
    options = ["--pause-on-failure"] if pausing else []
    argv = [sys.executable, "-m", "pytest", *nodes, "-q", "-p", "no:cacheprovider", *options]
    # With -s the terminal shows the tests' output as it arrives.
    shown = config.getoption("capture") == "no"
    with tempfile.TemporaryDirectory() as directory:
        reports, output = Path(directory, "reports"), Path(directory, "output")
        late = ""
        with output.open("wb") as file:
            try:
                status = sandbox.run(
                    [*argv, "-s"] if shown else argv,
                    env={**os.environ, REPORTS_VARIABLE: str(reports)},
                    cwd=config.rootpath,
                    stdin=None if pausing else subprocess.DEVNULL,
                    stdout=None if shown else file,
                    stderr=None if shown else subprocess.STDOUT,
                )
            except pytest.fail.Exception as timeout:  # of pytest-timeout, in a signal handler
                status, late = pytest.ExitCode.TESTS_FAILED, str(timeout)
        if status == pytest.ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        for line in reports.read_text().splitlines() if reports.exists() else ():
            data = json.loads(line)
            if isinstance(data["longrepr"], list):  # a skip's place and reason: JSON knows no tuples
                data["longrepr"] = tuple(data["longrepr"])
            config.stash[results_key][data["nodeid"]].append(data)
        return output.read_text(errors="replace") + late


def lost(item: pytest.Item, output: str) -> dict[str, Any]:
    """The report of an item that the inner pytest did not report."""
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={},
        outcome="failed",
        longrepr=f"the sandbox ended before or during this test, with the output:\n{output}",
        when="call",
    )
    return report._to_json()
