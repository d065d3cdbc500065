# SPDX-License-Identifier: Apache-2.0
"""Writes reference pages of the documentation site from the program itself.

``commands.md`` has the ``--help`` text of every ``paralet`` command, ``parameters.md`` the variables of the NCCL net
plugin, ``counters.md`` the counters of devices. It runs in the project's own environment (``make setup``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

import nccl_net_plugin
from hostlib.stats import COUNTERS
from testbed.cli import main as paralet


def commands(group: click.Group = paralet, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command of `group` and of the groups below it, without ``paralet`` itself."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def commands_page() -> str:
    """A page with a section for each command: its help text. Raises RuntimeError when a command has none."""
    sections = ["# Commands\n\nThe output of `--help`, command by command."]
    for words in commands():
        done = CliRunner().invoke(paralet, [*words, "--help"], prog_name="paralet", terminal_width=100)
        if done.exit_code != 0 or not done.output.strip():
            raise RuntimeError(f"`paralet {' '.join(words)} --help` ended with {done.exit_code} and printed no help")
        sections.append(f"## paralet {' '.join(words)}\n\n```text\n{done.output.strip()}\n```")
    return "\n\n".join(sections) + "\n"


def parameters_page() -> str:
    """A page with a table of the plugin's variables. Raises FileNotFoundError when the plugin is not built."""
    rows = [f"| `{p.name}` | {p.values} | {p.default} | {p.meaning} |" for p in nccl_net_plugin.parameters()]
    return "\n".join(
        (
            "# Plugin parameters",
            "",
            "The output of `paralet plugin --parameters`.",
            "",
            "| parameter | values | default | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        )
    )


def counters_page() -> str:
    """A page with a table of the counters of devices, with their names in Prometheus."""
    names = {
        "lane": "paralet_device_{}_total",
        "messages": "paralet_messages_{}_total",
        "discards": 'paralet_device_discards_total{{reason="{}"}}',
        "path_client": "paralet_path_client_{}_total",
    }
    rows = [
        f"| {group} | `{name}` | {meaning} | `{names[group].format(name)}` |"
        for group, counters in COUNTERS.items()
        for name, meaning in counters.items()
    ]
    return "\n".join(
        (
            "# Counters",
            "",
            "What `hostlib.stats` and `hostlib.Device.counters()` count, and the names in Prometheus.",
            "",
            "| group | counter | meaning | in Prometheus |",
            "|---|---|---|---|",
            *rows,
            "",
        )
    )


def main(folder: Path) -> None:
    """Write the pages into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commands.md").write_text(commands_page())
    (folder / "parameters.md").write_text(parameters_page())
    (folder / "counters.md").write_text(counters_page())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
