# SPDX-License-Identifier: Apache-2.0
"""The built site in a real browser without network: every diagram is drawn, and every page fits its window.

Run by scripts/site.sh: python -m tests.docs.site FOLDER.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.browser import PROGRAM, Browser

WIDTHS = (1280, 400)
"""Of windows: a laptop's and a telephone's, in pixels."""
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
DRAWN = "Array.from(document.querySelectorAll('div.mermaid')).filter((one) => one.offsetHeight > 0).length"
"""The theme puts an element with the picture in the place of each diagram's text."""
LOCAL = ("file:", "data:", "blob:")
PATIENCE = 1000
"""Looks at a page, 20 ms and more apart, until its diagrams are drawn."""


def faults(browser: Browser, page: Path) -> list[str]:
    """What is wrong with the page, one sentence each."""
    browser.requested.clear()
    browser.open(page.as_uri())
    diagrams, looks = page.read_text().count('class="mermaid"'), 0
    while browser.value(DRAWN) < diagrams and (looks := looks + 1) < PATIENCE:
        browser.value("new Promise((resume) => setTimeout(resume, 20))")
    found = [f"asks for {url}" for url in browser.requested if not url.startswith(LOCAL)]
    if looks == PATIENCE:
        found.append(f"does not draw all of its {diagrams} diagrams")
    for width in WIDTHS:
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        if browser.value(TOO_WIDE):
            found.append(f"is wider than a window of {width} pixels")
    return found


def main(folder: Path) -> int:
    if PROGRAM is None:
        print("site: there is no chromium to open its pages")
        return 0
    wrong = []
    with tempfile.TemporaryDirectory() as own, Browser(Path(own)) as browser:
        pages = sorted(folder.rglob("*.html"))
        for page in pages:
            wrong += [f"site: {page} {fault}" for fault in faults(browser, page)]
    print("\n".join(wrong) if wrong else f"site: {len(pages)} pages need no network and fit their windows")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
