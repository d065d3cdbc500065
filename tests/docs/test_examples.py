# SPDX-License-Identifier: Apache-2.0
"""The examples of the README and docs/ work: programs run, commands exist, links have a target."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest
import yaml

from testbed import spec
from testbed.cli import main as paralet
from tests.docs.markdown import PAGES, ROOT, SHELL, Block, Command, anchors, blocks, commands, links

# Commands that only look, and runs on a model, are run here. The others need root, minutes or a network; only their
# words are checked.
HARMLESS = {"export", "plan", "plugin", "predict", "sweep", "--help", "--version"}
# Options for files, which are tried as soon as they are read.
WRITTEN = {"--out", "--output", "--page", "--picture", "--write", "--write-routers", "--write-topology"}
PARALET = Path(sys.executable).with_name("paralet")


@pytest.mark.parametrize("block", list(blocks("python")), ids=str)
def test_program_runs_as_written(block: Block, tmp_path: Path) -> None:
    if block.not_run:
        pytest.skip(block.not_run)
    program = tmp_path / "example.py"
    program.write_text(block.text)
    folder = tmp_path / "checkout"  # results go there
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name != "results":
            (folder / path.name).symlink_to(path)
    subprocess.run([sys.executable, program], cwd=folder, check=True, timeout=280)


@pytest.mark.parametrize("block", list(blocks("yaml")), ids=str)
def test_spec_is_accepted(block: Block, tmp_path: Path) -> None:
    """YAML parses; a whole spec is one that `paralet run` would take."""
    if block.not_run:
        pytest.skip(block.not_run)
    document = yaml.safe_load(block.text)
    if {"topology", "workload", "policies"} <= document.keys():
        file = tmp_path / "spec.yaml"
        file.write_text(block.text)
        spec.load(file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_shell_takes_is_pasted_as_written(page: Path) -> None:
    """A prompt would be pasted too: `# make setup` does nothing and succeeds. Output is in a block of its own."""
    for block in blocks("console", *SHELL):
        if block.page == page:
            assert block.language in SHELL, f"{block}: put commands without prompts into a block of sh"
            assert not re.search(r"^[$#>] ", block.text, re.MULTILINE), f"{block}: a prompt or a comment is pasted too"
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


@pytest.mark.parametrize("command", list(commands()), ids=str)
def test_command_works_as_shown(command: Command, tmp_path: Path) -> None:
    words = shlex.split(command.text.replace('"$(command -v paralet)"', "paralet"), comments=True)
    words = words[1:] if words[0] == "sudo" else words
    words = words[1:] if "=" in words[0] else words  # for the environment
    match Path(words[0]).name, words[1:]:
        case "paralet", arguments:
            for word in arguments:
                assert not word.startswith("experiments/") or (ROOT / word).is_file()
            if ">" in arguments:
                arguments = arguments[: arguments.index(">")]
            for place, option in enumerate(arguments):  # not into the checkout
                if option in WRITTEN:
                    arguments[place + 1] = str(tmp_path / Path(arguments[place + 1]).name)
            modelled = arguments[0] == "run" and re.search(" experiments/.* --fabric fluid", command.text)
            if arguments[0] in ("plan", "sweep") or modelled:  # results of earlier ones must not be used
                arguments += ["--results", str(tmp_path)]
            if arguments[0] in HARMLESS or modelled or arguments[-1] == "--help":
                assert_shows(command, [PARALET, *arguments])
            else:
                assert_parses(arguments)
        case "make", arguments:
            targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
            assert {word for word in arguments if "=" not in word} <= targets
        case "python", ["-m", "pytest", str(tests), *_]:
            assert (ROOT / tests).exists()
        case "eval", _:  # by a shell that finds paralet
            script = f'PATH="{PARALET.parent}:$PATH"; set -euo pipefail; {command.text}; test -f "$NCCL_NET_PLUGIN"'
            subprocess.run(["bash", "-c", script], cwd=ROOT, check=True, timeout=280)
        case "source", [script]:  # made by `make setup`
            assert script == ".venv/bin/activate"
        case "python3" | "pip", _:  # of the start without root, which test_start.py runs
            pass
        case "gnmic" | "podman" | "torchrun", _:  # of others, and not among the packages
            pass
        case ("cd", ["build/cmake/release"]) | ("net-conformance", _):  # made by `make test-native`
            pass
        case "docker", _:
            assert (ROOT / "Dockerfile").is_file()
        case program, _:
            built = (ROOT / words[0]).is_file()
            assert built or shutil.which(program), f"{program} is not on a machine that make setup has prepared"


def assert_shows(command: Command, argv: Sequence[str | Path]) -> None:
    """The command succeeds and prints what the page shows."""
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert command.shows(done.stdout), done.stdout


def assert_parses(arguments: list[str]) -> None:
    """The command line has such a command, with such arguments."""
    current: click.Command = paralet
    context = click.Context(current, info_name="paralet")
    while isinstance(current, click.Group):
        _, found, arguments = current.resolve_command(context, arguments)
        assert found is not None
        current = found
    current.make_context(current.name, list(arguments), parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue  # elsewhere
        path, _, anchor = target.partition("#")
        destination = (page.parent / path).resolve() if path else page
        assert destination.exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"
        assert destination.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(destination), f"{page.relative_to(ROOT)} links to {target}: no such heading"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert {page for page in PAGES if page.parent == index.parent} - linked == {index}


def test_every_page_is_on_the_site() -> None:
    """`make site` finds broken links by itself, but not what its table of contents lacks."""

    def entries(tree: object) -> Iterator[str]:
        if isinstance(tree, str):
            yield tree
        elif isinstance(tree, dict | list):
            for branch in tree.values() if isinstance(tree, dict) else tree:
                yield from entries(branch)

    settings = (ROOT / "mkdocs.yml").read_text()
    named = set(entries(yaml.safe_load(settings[settings.index("\nnav:") :])))
    generated = {entry for entry in named if entry.startswith("api/")}
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")} <= named
    assert all((ROOT / entry).is_file() for entry in named - generated)


def test_every_dependency_is_named_with_its_reason() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    named = [line.split(": ")[0] for line in page.splitlines() if line.startswith("- `")]
    named += [line for line in page.splitlines() if line.startswith("To build: ")]
    explained = {name for line in named for name in re.findall(r"`([^`]+)`", line)}

    lists = ("apt-packages.txt", "apt-packages-check.txt")
    debian = [line for name in lists for line in (ROOT / "scripts" / name).read_text().splitlines()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    python = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(each for extra in project["project"]["optional-dependencies"].values() for each in extra),
    ]
    names = {line for line in debian if line and not line.startswith("#")}
    names |= {re.split(r"[^\w.-]", requirement)[0] for requirement in python}
    names.discard(project["project"]["name"])  # one extra asks for another
    assert explained == names
