# SPDX-License-Identifier: Apache-2.0
"""`paralet shell`: a fabric without a workload, and a prompt."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

import click

from emul import sandbox
from testbed.cli.extras import require
from testbed.errors import InputError

_STATUS = {0: 0, 2: 2, 3: 1}
"""The exit status by that of `testbed.run.shell`, where nothing in the logs explains it."""


@click.command(epilog="Example: echo 'h1 ping -c 3 h2' | sudo paralet shell experiments/demo.yaml")
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path))
@click.option("--fabric", type=click.Choice(["mininet", "routed"]), help="Bring up this fabric instead of the spec's.")
@click.option(
    "--logs",
    "logs_dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the logs of switches and routers; without it they go when the shell ends.",
)
@click.pass_context
def shell(
    context: click.Context, spec_file: Path, fabric: Literal["mininet", "routed"] | None, logs_dir: Path | None
) -> None:
    """Bring up the fabric of the file SPEC, without its workload, and give a prompt.

    SPEC is an experiment or a topology. Commands show nodes, links and rules, cut and slow links, capture packets and
    run programs on hosts; `help` lists them. Without a terminal they are read from standard input, and the exit status
    is 1 when one of them failed. Meanwhile `paralet exec`, `capture`, `link` and `inspect` work from other terminals.
    The fabric is gone when the shell ends. Needs root.
    """
    require("models", "paralet shell")
    from testbed import spec
    from testbed.cli.run import require_fabric

    bare = spec.load_bare(spec_file, fabric)
    if not bare.kind.soft:
        raise InputError(f"fabric {bare.fabric} has no shell: take --fabric mininet or --fabric routed")
    require_fabric(bare.kind)
    folder = Path(tempfile.mkdtemp(prefix="paralet-shell-"))
    explained = True
    try:
        given, logs = folder / "spec.yaml", (logs_dir or folder / "logs").absolute()
        given.write_text(spec.dump_bare(bare))
        argv = [sys.executable, "-m", "testbed.run.shell", "--spec", str(given), "--log-dir", str(logs)]
        status = sandbox.run(argv, stdin=None, grace_s=0.0)
        explained = status != 1
    except sandbox.SandboxError as error:
        raise InputError(str(error)) from error
    finally:
        if explained:  # else the error has named the logs
            shutil.rmtree(folder, ignore_errors=True)
    if status in (130, 143):
        raise click.Abort
    context.exit(_STATUS.get(status, 1))
