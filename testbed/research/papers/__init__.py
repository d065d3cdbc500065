# SPDX-License-Identifier: Apache-2.0
"""Compares numbers of papers with ours. Each paper has a package: checks of its claims, and introduction.md."""

from importlib.resources import files

from testbed.research.papers import paralet, rail_only, routing, topoopt, vclos
from testbed.research.papers.claim import Claim, Relation, Verdict
from testbed.research.papers.findings import Drawing, Findings, Paper

PAPERS = {
    "000": Paper("Routing for Large ML Models (arXiv:2503.05324)", files(routing) / "introduction.md", routing.find),
    "001": Paper(
        "Isolated Scheduling for Distributed Training Tasks (vClos, 2023)", files(vclos) / "introduction.md", vclos.find
    ),
    "002": Paper("TopoOpt (NSDI 2023)", files(topoopt) / "introduction.md", topoopt.find),
    "003": Paper(
        "Rail-only: A Low-Cost High-Performance Network for Training LLMs (arXiv:2307.12169v5)",
        files(rail_only) / "introduction.md",
        rail_only.find,
    ),
    "004": Paper(
        "Network Load Balancing with Parallel Flowlets for AI Training Clusters (ParaLet, NAIC 2024)",
        files(paralet) / "introduction.md",
        paralet.find,
    ),
}
"""Papers by their number in docs/papers/index.md."""

__all__ = ["PAPERS", "Claim", "Drawing", "Findings", "Paper", "Relation", "Verdict"]
