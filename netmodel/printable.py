# SPDX-License-Identifier: Apache-2.0
"""Makes text of unknown origin safe to show: what `print`, tables and logs say of names, paths and messages."""

import re

_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Letters and marks that show nothing although Unicode counts them as printable (Default_Ignorable_Code_Point)."""


def printable(text: object) -> str:
    r"""One line of text without anything that a terminal or a log would act upon.

    Control characters (C0 and C1), line breaks, direction marks, zero-width characters and lone surrogates become
    escapes as in Python's literals, such as ``\x1b`` and ``\u202e``. Everything else stays, backslashes too, so text
    that passes twice does not change.
    """
    line = str(text)
    if not line.isprintable():
        line = "".join(letter if letter.isprintable() else _escape(letter) for letter in line)
    return line if line.isascii() else _BLANK.sub(lambda match: _escape(match[0]), line)


def printable_lines(text: object) -> str:
    """Text of several lines, each made `printable`. Tabs become spaces."""
    return "\n".join(printable(line.expandtabs()) for line in str(text).split("\n"))


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
