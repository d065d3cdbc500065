# SPDX-License-Identifier: Apache-2.0
"""`soft` and the kernel's SoftRoCE on one link, and the table of interoperability results."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.softroce.interop import network
from tests.softroce.interop.network import PLAIN_ADDRESS, RXE, RXE_ADDRESS, Wire

TABLE_VARIABLE = "PARALET_INTEROPERABILITY_TABLE"
"""The file that takes the table."""

PROPERTY = "interoperability"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    reason = missing() if here else None
    for item in here:
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def missing() -> str | None:
    """The reason why these tests cannot run here; None if they can."""
    if reason := network.missing():
        return reason
    for module, remedy in (("pyverbs", "apt install python3-pyverbs"), ("raw_qp", "run 'make test-softroce'")):
        try:
            __import__(module)
        except ImportError as error:
            return f"{error}: {remedy}"
    return None


@pytest.fixture(scope="session")
def wire() -> Iterator[Wire]:
    with network.wire() as made:
        yield made


@pytest.fixture
def pair(wire: Wire) -> Iterator[Callable[..., object]]:
    """Makes a connected pair: `pair(path_mtu=1024, ...)`, as in `Pair.connected`. Gone after the test."""
    from tests.softroce.interop.pair import Pair

    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Pair.connected(RXE, RXE_ADDRESS, PLAIN_ADDRESS, **options))
        wire.drop_every(0)


ELSEWHERE = Path(__file__).with_name("elsewhere.md")
"""The section on features that other tests show, as no peer of these tests has them."""

Row = tuple[str, str]
_rows: dict[Row, list[tuple[str, str]]] = defaultdict(list)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == PROPERTY and report.when == "call":
            what, direction, detail = value
            _rows[what, direction].append((detail, report.outcome if not hasattr(report, "wasxfail") else "not yet"))


def pytest_sessionfinish() -> None:
    if _rows and (path := os.environ.get(TABLE_VARIABLE)):
        Path(path).write_text(table())


def table() -> str:
    """docs/interoperability.md, from what this session did."""
    release = platform.release()
    package = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", "ibverbs-providers"], capture_output=True, text=True
    ).stdout
    lines = [
        "# Interoperability",
        "",
        "`make test-softroce` writes this page. The tests passed unless a line says otherwise.",
        "",
        "- `soft` is the engine's own back end, on a plain interface in a network namespace.",
        "- `kernel` is a program (pyverbs) on the kernel's [SoftRoCE](softroce.md) device.",
        "- `verbs` is the engine's back end for such devices.",
        "",
        f"Kernel {release}, rdma-core {package or 'of unknown version'}. Parameters are in parentheses.",
        "",
    ]
    directions: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (what, direction), cases in _rows.items():
        details = ", ".join(dict.fromkeys(detail for detail, _ in cases if detail))
        outcomes = {outcome for _, outcome in cases}
        result = ", ".join(sorted(outcomes - {"passed"}))
        directions[what, details, result].append(direction)
    tests: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (what, details, result), between in directions.items():
        tests[", ".join(between), details, result].append(what)
    by_ends: dict[str, list[str]] = defaultdict(list)
    for (ends, details, result), names in tests.items():
        beside = ": ".join(filter(None, (details, result)))
        by_ends[ends].append(f"- {'; '.join(names)}" + (f" ({beside})" if beside else ""))
    for ends, found in by_ends.items():
        lines += [f"{ends}:", "", *found, ""]
    return "\n".join(lines) + "\n" + ELSEWHERE.read_text()
