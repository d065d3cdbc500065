# SPDX-License-Identifier: Apache-2.0
"""`--help`, `--version` and completion answer at once: they import neither the commands nor large packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import click
import pytest

from emul import guest
from sdn.planners import DEFAULT_PLANNER, PLANNERS
from testbed import spec
from testbed.cli import main, options
from testbed.cli.bench import BENCHES
from testbed.cli.commands import COMMANDS
from testbed.research.papers import PAPERS
from testbed.simulate.models import MODELS

ROOT = Path(__file__).parents[3]
SLOW = {"highspy", "jinja2", "matplotlib", "msgspec", "networkx", "numpy", "pydantic", "rich", "textual", "yaml"}

PROGRAM = """
import sys
from testbed.__main__ import main
sys.argv[0] = "paralet"
try:
    main()
except SystemExit as end:
    print(end.code or 0, *sys.modules, file=sys.stderr)
"""


def started(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """What `paralet` prints, and the modules that it has imported by then."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    status, *modules = done.stderr.split()
    assert status == "0"
    return done.stdout, set(modules)


def commands_in(modules: Iterable[str]) -> set[str]:
    return {f"testbed.cli.{name.replace('-', '_')}" for name in COMMANDS} & set(modules)


@pytest.mark.parametrize(
    ("arguments", "completed", "printed"),
    [
        (["--help"], None, "Commands:\n  bench "),
        (["--version"], None, "paralet "),
        ([], "paralet re", "report"),
        ([], "paralet --ver", "--version"),
    ],
    ids=str,
)
def test_the_start_imports_no_command(arguments: list[str], completed: str | None, printed: str) -> None:
    completing = {"_PARALET_COMPLETE": "bash_complete", "COMP_WORDS": completed, "COMP_CWORD": "1"} if completed else {}
    shown, modules = started(*arguments, **completing)
    assert printed in shown
    assert not commands_in(modules)
    assert not SLOW & modules


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_imports_no_large_package(name: str) -> None:
    shown, modules = started(name, "--help")
    assert "Example" in shown
    assert commands_in(modules) == {f"testbed.cli.{name.replace('-', '_')}"}
    assert not (SLOW - {"msgspec"}) & modules


def command(*words: str) -> click.Command:
    found: click.Command = main
    for word in words:
        assert isinstance(found, click.Group)
        below = found.get_command(click.Context(found), word)
        assert below is not None
        found = below
    return found


def test_the_table_of_commands_has_the_first_sentence_of_each_ones_help() -> None:
    assert {name: command(name).get_short_help_str(1000) for name in COMMANDS} == COMMANDS


@pytest.mark.parametrize("group", [(), ("path-service",)], ids=["paralet", "path-service"])
def test_the_list_of_commands_is_not_cut(group: tuple[str, ...]) -> None:
    listed = " ".join(started(*group, "--help")[0].split())
    found = command(*group)
    assert isinstance(found, click.Group)
    for name in found.list_commands(click.Context(found)):
        assert f" {name} {command(*group, name).get_short_help_str(1000)}" in listed


def test_a_command_is_completed_with_its_sentence() -> None:
    shown, _ = started(_PARALET_COMPLETE="zsh_complete", COMP_WORDS="paralet swe", COMP_CWORD="1")
    assert shown.splitlines() == ["plain", "sweep", COMMANDS["sweep"]]


# What options repeat, because its own module takes long to import.


def parameter(name: str, *words: str) -> click.Parameter:
    return next(parameter for parameter in command(*words).params if parameter.name == name)


def choices(name: str, *words: str) -> list[str]:
    choice = parameter(name, *words).type
    assert isinstance(choice, click.Choice)
    return list(choice.choices)


def test_options_have_the_names_of_what_they_choose_from() -> None:
    assert choices("name", "bench") == list(BENCHES)
    assert choices("number", "papers") == list(PAPERS)
    assert parameter("planner", "path-service", "run").metavar == f"[{'|'.join(PLANNERS.ours)}]"
    assert parameter("planner", "path-service", "run").default == DEFAULT_PLANNER
    assert set(choices("fabric", "run")) == set(get_args(spec.FabricName)) == set(spec.FABRICS)
    assert choices("fabric", "sweep") == list(MODELS)
    assert parameter("time_limit_s", "run").default == guest.GuestOptions().time_limit_s
    assert options.SEEDS_MAX == spec.SEEDS_MAX
