# SPDX-License-Identifier: Apache-2.0
"""Just enough Markdown to find what a reader would copy or click: fenced blocks, commands in them, links, headings."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL = ("sh", "bash")
"""Languages of blocks that a reader pastes into a shell."""
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n+)?^```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_OUTPUT = re.compile(r"\n\n```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block. A comment ``<!-- not run: REASON -->`` right before it says why a test leaves it alone."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None
    output: str = ""
    """The text block right below, which a page shows as what the block prints."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command of a shell block, and the output shown in a text block right below the block that it ends."""

    block: Block
    text: str
    output: str

    def __str__(self) -> str:
        return f"{self.block}: {self.text}"

    def shows(self, printed: str) -> bool:
        """Whether the page shows nothing below the command, or what it ``printed``."""
        return not self.output.strip() or shows(self.output, printed)


def shows(output: str, printed: str) -> bool:
    """Whether ``output`` of a page is what was ``printed``; ``...`` stands for anything."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(output, printed, options)


def blocks(*languages: str) -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            if match["language"] in languages:
                line = text.count("\n", 0, match.start("language")) + 1
                printed = _OUTPUT.match(text, match.end())
                output = printed["text"] if printed else ""
                yield Block(page, line, match["language"], match["text"], match["reason"], output)


def commands() -> Iterator[Command]:
    for block in blocks(*SHELL):
        lines = block.text.replace("\\\n", "").splitlines()
        written = [re.sub(r"\s+", " ", line).strip() for line in lines if line.strip()]
        for command in written[:-1]:
            yield Command(block, command, "")
        yield Command(block, written[-1], block.output)


def links(page: Path) -> Iterator[str]:
    text = _BLOCK.sub("", page.read_text())
    yield from (match["target"] for match in _LINK.finditer(text))


def anchors(page: Path) -> set[str]:
    """The anchors that a Markdown viewer gives the headings of a page."""
    text = _BLOCK.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
