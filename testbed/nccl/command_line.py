# SPDX-License-Identifier: Apache-2.0
"""What the command lines of this package have in common: wrong ones end with a sentence and exit status 2."""

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from netmodel.printable import printable

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Report the error and end."""
        sys.exit(end(self.prog, f"{message} (see `{self.prog} --help`)", 2))


class Help(argparse.RawDescriptionHelpFormatter):
    """Help in the words and the width of the other commands."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        """Add the first line."""
        super().add_usage("%(prog)s [OPTIONS]", actions, groups, "Usage: ")

    def start_section(self, heading: str | None) -> None:
        """Begin a list of options."""
        super().start_section(None if heading is None else heading.capitalize())


def listed(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A type of argparse: a list of different items, with commas between. `parse` raises ValueError for a wrong one."""

    def all_of(text: str) -> tuple[T, ...]:
        try:
            items = tuple(parse(item) for item in text.split(","))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        if len(set(items)) < len(items):
            raise argparse.ArgumentTypeError(f"{text!r} names something twice")
        return items

    return all_of


def one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    """An item of `listed`: one of these names."""

    def checked(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is none of {', '.join(names)}")
        return text

    return checked


def number_from(least: int) -> Callable[[str], int]:
    """A type of argparse: a whole number from `least` to 1024."""

    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= 1024:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to 1024")
        return int(text)

    return number


def end(program: str, sentence: str, status: int) -> int:
    """Say in one line why a program ends. Returns its exit status."""
    print(printable(f"{program}: {' '.join(sentence.split())}"), file=sys.stderr)
    return status
