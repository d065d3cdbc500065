# SPDX-License-Identifier: Apache-2.0
"""Tables on terminals of any width: no cell is shortened."""

import io
import re

from hypothesis import given
from hypothesis import strategies as st

from testbed.cli.tables import PlainConsole, table

NAMES = ["fastest step", "tensor parallel", "GPU hours", "usd per token", "MFU"]


def drawn(width: int, rows: list[tuple[str, list[float]]], title: str = "a table") -> str:
    listing = table(title, ["strategy"], NAMES)
    for name, numbers in rows:
        listing.add_row(name, *(f"{number:,.3f}" for number in numbers))
    out = io.StringIO()
    PlainConsole(file=out, width=width).print(listing)
    return out.getvalue()


ROW = st.tuples(
    st.from_regex(r"[a-z]{1,12}", fullmatch=True),
    st.lists(st.floats(0, 1e12), min_size=len(NAMES), max_size=len(NAMES)),
)


@given(st.integers(30, 160), st.lists(ROW, min_size=1, max_size=4))
def test_every_number_is_whole_at_any_width(width: int, rows: list[tuple[str, list[float]]]) -> None:
    text = drawn(width, rows)
    assert "…" not in text
    for name, numbers in rows:
        assert re.search(rf"(?m)^ *{name}\b", text)
        for number in numbers:
            assert f"{number:,.3f}" in text
    assert max(map(len, text.splitlines())) <= width


def test_a_narrow_terminal_gets_a_line_for_each_cell() -> None:
    rows = [("first", [1.0, 2.0, 3.0, 4.0, 5.0])]
    assert "fastest step  tensor parallel" in drawn(120, rows)
    assert [line.strip() for line in drawn(40, rows).splitlines()] == [
        "a table",
        "",
        "first",
        "fastest step: 1.000",
        "tensor parallel: 2.000",
        "GPU hours: 3.000",
        "usd per token: 4.000",
        "MFU: 5.000",
        "",
    ]
