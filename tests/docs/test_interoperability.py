# SPDX-License-Identifier: Apache-2.0
"""The page on interoperability: what it says of tests beside those that write it."""

from __future__ import annotations

import re

from tests.docs.markdown import ROOT

ELSEWHERE = ROOT / "tests" / "softroce" / "interop" / "elsewhere.md"


def test_the_page_ends_with_the_features_that_other_tests_show() -> None:
    assert (ROOT / "docs" / "interoperability.md").read_text().endswith(ELSEWHERE.read_text())


def test_the_named_tests_exist() -> None:
    named = re.findall(r"^- .+: `([^`]+)`, `([^`]+)`$", ELSEWHERE.read_text(), re.MULTILINE)
    assert named
    for file, test in named:
        form = f"def {test}(" if file.endswith(".py") else f'TEST_CASE("{test}")'
        assert form in (ROOT / file).read_text(), file
