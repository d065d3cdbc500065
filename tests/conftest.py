# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests. Integration tests are marked, and skipped with a reason where the machine cannot run them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tests.certificates import Authority

# No deadline, because the time of an example depends on the machine. The examples are the same in every run, so that no
# unrelated change fails; `--hypothesis-profile=search` tries other examples.
settings.register_profile("search", deadline=None)
settings.register_profile("paralet", deadline=None, derandomize=True)
settings.load_profile("paralet")

INTEGRATION = Path(__file__).parent / "integration"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA, for tests with certificates."""
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another CA."""
    return Authority(tmp_path_factory.mktemp("tls") / "foreign")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pause-on-failure",
        action="store_true",
        help="after a failed test keep its processes running until Ctrl-C, for inspection (use with -s)",
    )


@cache
def missing_for_integration() -> str | None:
    """Why this machine cannot run integration tests, in one line; None when it can."""
    if os.geteuid() != 0:
        return "integration tests need root: run them with 'sudo make test-integration'"
    try:
        import emul
    except ImportError as error:
        return f"emul cannot be imported: {error}"
    faults = [finding for finding in emul.probe() if not finding.ok]
    return "; ".join(f"{fault.name}: {fault.detail} ({fault.remedy})" for fault in faults) or None


def pytest_configure() -> None:
    # A shell that starts pytest in the background makes it ignore Ctrl-C, which all its children would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without Python's search for garbage, which would look at all tests again and again, now and while they run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each worker begins with long unit tests, so that none is left for the end, when others have nothing to do.

    pytest-xdist (`--dist worksteal`) gives each of n workers one nth of the tests, in their order.
    """
    on_fabrics = {path for path in {item.path for item in items} if path.is_relative_to(INTEGRATION)}
    for item in items:
        if item.path in on_fabrics:
            item.add_marker(pytest.mark.integration)
    long = [item for item in items if item.path not in on_fabrics and item.get_closest_marker("long")]
    others = [item for item in items if item.path in on_fabrics or not item.get_closest_marker("long")]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    total, items[:] = len(items), []
    for worker in range(workers):
        share = long[worker::workers]
        size = (total - len(items)) // (workers - worker)
        items += [*share, *others[: size - len(share)]]
        del others[: size - len(share)]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("integration") and (reason := missing_for_integration()):
        pytest.skip(reason)


def said(error: BaseException) -> list[tuple[str, str]]:
    """What a program said that failed or took too long, where that was captured: the text of the exception lacks it."""
    if not isinstance(error, (subprocess.CalledProcessError, subprocess.TimeoutExpired)):
        return []
    named = {"standard output": error.output, "standard error": error.stderr}
    texts = {name: text.decode(errors="replace") if isinstance(text, bytes) else text for name, text in named.items()}
    return [(f"{name} of the program", text) for name, text in texts.items() if text]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        report.sections += said(call.excinfo.value)
    if report.when == "call" and report.failed and item.config.getoption("pause_on_failure"):
        print(
            f"\n{report.longreprtext}\n\n{item.nodeid} failed. Its processes still run; Ctrl-C ends them.", flush=True
        )
        signal.setitimer(signal.ITIMER_REAL, 0)  # no time limit during inspection
        signal.pause()  # waiting for Enter would need the terminal, which a sandbox's process group does not have
    return report
