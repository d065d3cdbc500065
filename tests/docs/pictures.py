# SPDX-License-Identifier: Apache-2.0
"""`make docs-pictures`: draws the pictures of `paralet top` and of a report's replay from a run of the demo.

It needs root, for the emulated fabric, and chromium. The pictures differ a little each time, as runs do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from testbed.analysis import results
from testbed.live.runs_so_far import Began, Finished, entries
from tests.browser import Browser

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PARALET = [sys.executable, "-m", "testbed"]
_REPLAYED_S = 6.0
_TIMES = 4


def main() -> None:
    """Run two policies with two seeds, and take pictures during the last run of ECMP and of the report."""
    with tempfile.TemporaryDirectory() as place:
        spec = yaml.safe_load((ROOT / "experiments" / "demo.yaml").read_text())
        spec["workload"]["bytes"] *= _TIMES  # so that the views have started long before a run ends
        spec_file = Path(place, "spec.yaml")
        spec_file.write_text(yaml.safe_dump(spec))
        command = [*PARALET, "run", str(spec_file), "--seeds", "2", "--results", place]
        run = subprocess.Popen([*command, "--policy", "ecmp", "--policy", "paralet-8"], cwd=ROOT)
        try:
            folder = Path(place, "demo")
            _await_third_run(run, folder / results.JOURNAL)
            watch = [*PARALET, "top", "--run", str(folder)]
            screen = subprocess.Popen([*watch, "--picture", str(IMAGES / "top.svg")], cwd=ROOT)
            with _served(watch) as page, Browser(Path(place, "browser"), height=900) as browser:
                browser.open(page)
                browser.until("document.querySelectorAll('svg.spark path').length > 15")
                (IMAGES / "top-page.png").write_bytes(browser.picture("body"))
            _succeed(screen)
            _succeed(run)
            with Browser(Path(place, "reader")) as browser:
                browser.open(f"{(folder / 'report.html').as_uri()}#at={_REPLAYED_S}")
                (IMAGES / "replay.png").write_bytes(browser.picture("#replay"))
        finally:
            run.kill()


def _await_third_run(run: subprocess.Popen[bytes], journal: Path) -> None:
    while run.poll() is None:
        if journal.exists():
            with journal.open() as lines:
                journalled = entries(lines)
            if sum(isinstance(entry, Finished) for entry in journalled) == 2 and isinstance(journalled[-1], Began):
                return
        time.sleep(0.05)
    raise SystemExit("the run ended before its third part began")


@contextmanager
def _served(watch: list[str]) -> Iterator[str]:
    """The address of the page while open."""
    with subprocess.Popen([*watch, "--serve", "127.0.0.1:0"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[1]
        finally:
            server.kill()


def _succeed(process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        raise SystemExit(f"{process.args!r} failed")


if __name__ == "__main__":
    main()
