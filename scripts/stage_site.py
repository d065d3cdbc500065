# SPDX-License-Identifier: Apache-2.0
"""Puts what the documentation site is made of into a folder: pages, the files they link to, the API reference.

Files keep their places relative to each other, so that links which work in the repository work on the site. Pages with
diagrams load the site's own copy of Mermaid (scripts/mermaid.py).
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIAGRAM = "```mermaid"
LINK = re.compile(r"!?\[[^\]]*\]\((?P<path>[^)\s#]+)[^)\s]*\)")
API = {
    "netmodel": ("netmodel", "netmodel.relative"),
    "hostlib": ("hostlib", "hostlib.stats", "hostlib.snapshots"),
    "nccl_net_plugin": ("nccl_net_plugin",),
    "paralet_torch": ("paralet_torch",),
    "sdn.planners": ("sdn.planners",),
    "sdn.isolation": (
        "sdn.isolation",
        "sdn.isolation.vclos",
        "sdn.isolation.ocs_vclos",
        "sdn.isolation.packing",
        "sdn.isolation.source_routing",
    ),
    "sdn.topoopt": ("sdn.topoopt",),
    "sim": ("sim.fluid", "sim.packet"),
    "testbed.training": (
        "testbed.training.closed_form",
        "testbed.training.clusters",
        "testbed.training.hardware",
        "testbed.training.search",
        "testbed.training.strategies",
        "testbed.training.transformer",
    ),
}


def main(folder: Path, mermaid: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    linked = {(page.parent / path).resolve() for page in pages for path in LINK.findall(page.read_text())}
    for file in {*pages, *(target for target in linked if target.is_file() and target.is_relative_to(ROOT))}:
        place = folder / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    shutil.copytree(mermaid, folder / "mermaid")
    (program,) = mermaid.glob("*.js")
    for page in pages:
        if DIAGRAM in page.read_text():
            up = "../" * (len(page.relative_to(ROOT).parts) - 1)
            with (folder / page.relative_to(ROOT)).open("a") as staged:
                staged.write(f'\n<script src="{up}mermaid/{program.name}"></script>\n')
    (folder / "api").mkdir()
    for name, modules in API.items():
        (folder / "api" / f"{name}.md").write_text(
            f"# {name}\n\n" + "\n\n".join(f"::: {module}" for module in modules) + "\n"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
