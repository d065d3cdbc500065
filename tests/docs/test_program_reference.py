# SPDX-License-Identifier: Apache-2.0
"""The reference pages of the site that scripts/program_reference.py makes from the program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

import nccl_net_plugin
from hostlib.stats import COUNTERS, PathClient
from testbed.cli import main as paralet
from testbed.cli.stat_prometheus import exposition
from tests.docs.markdown import ROOT
from tests.testbed.live.snapshots import device, lane, survey


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    script = ROOT / "scripts" / "program_reference.py"
    subprocess.run([sys.executable, script, folder], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=100)
    return folder


def test_every_command_has_a_section_with_its_options(pages: Path) -> None:
    page = (pages / "commands.md").read_text()
    sections = dict(re.findall(r"^## paralet ([^\n]+)\n\n```text\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL))
    assert {name.split()[0] for name in sections} == set(paralet.list_commands(click.Context(paralet)))
    for name, text in sections.items():
        assert text.startswith(f"Usage: paralet {name} "), name
        assert "--help" in text
    assert "--seeds N" in sections["run"]
    assert "--token-file FILE" in sections["path-service fail-link"]
    assert "--collectives LIST" in sections["nccl"]


def test_every_parameter_of_the_plugin_has_a_row(pages: Path) -> None:
    page = (pages / "parameters.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    known = [f"| `{p.name}` | {p.values} | {p.default} | {p.meaning} |" for p in nccl_net_plugin.parameters()]
    assert rows == known


def test_every_counter_has_a_row_with_the_name_of_its_metric(pages: Path) -> None:
    rows = [line.split(" | ") for line in (pages / "counters.md").read_text().splitlines() if line.startswith("| ")][1:]
    listed = {(group.removeprefix("| "), name.strip("`")): meaning for group, name, meaning, _ in rows}
    assert listed == {(group, name): meaning for group, table in COUNTERS.items() for name, meaning in table.items()}
    exported = exposition(survey(device(lane(1), path_client=PathClient(True, 0.0, *range(18)))))
    assert all(row[3].removesuffix(" |").strip("`").partition("{")[0] in exported for row in rows)


def test_the_plugins_page_has_every_parameter_with_its_default() -> None:
    page = (ROOT / "docs" / "plugin.md").read_text()
    rows = dict(re.findall(r"^\| `(PARALET_\w+)` \| ([^|]*) \|", page, flags=re.MULTILINE))
    assert rows == {parameter.name: parameter.default for parameter in nccl_net_plugin.parameters()}


def test_the_site_has_all_pages(pages: Path) -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    named = yaml.safe_dump(yaml.safe_load(settings[settings.index("\nnav:") :]))
    assert all(f"api/{page.name}" in named for page in pages.iterdir())
