# SPDX-License-Identifier: Apache-2.0
"""`paralet plugin`: its output as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import nccl_net_plugin
from testbed.cli import main


def paralet(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_prints_path_exports_and_variables() -> None:
    done = paralet("plugin")
    assert done.exit_code == 0
    assert f"path     {nccl_net_plugin.path()}" in done.stdout
    assert "ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("export ")]
    assert lines == [f"export {name}={value}" for name, value in nccl_net_plugin.environment().items()]


def test_json_has_the_same_content() -> None:
    shown = json.loads(paralet("plugin", "--json").stdout)
    assert shown == {
        "path": str(nccl_net_plugin.path()),
        "exports": nccl_net_plugin.exports(),
        "environment": nccl_net_plugin.environment(),
        "profiler": str(nccl_net_plugin.profiler_path()),
    }


def test_parameters_as_a_table_and_as_json() -> None:
    names = [parameter.name for parameter in nccl_net_plugin.parameters()]
    table = paralet("plugin", "--parameters").stdout
    assert all(name in table for name in names)
    rows = json.loads(paralet("plugin", "--parameters", "--json").stdout)["parameters"]
    assert [row["name"] for row in rows] == names
    assert all(row["values"] and row["default"] and row["meaning"] for row in rows)


@pytest.mark.parametrize("arguments", [(), ("--parameters",), ("--json",)])
def test_a_plugin_that_is_not_built_is_a_one_line_error(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nccl_net_plugin, "_LIB", tmp_path)
    done = paralet("plugin", *arguments)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("paralet: ")
    assert done.stderr.count("\n") == 1
    assert "make setup" in done.stderr
