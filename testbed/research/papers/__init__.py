# SPDX-License-Identifier: Apache-2.0
"""Compares numbers of papers with ours. Each paper has a package with the checks of its claims and its page's text."""

from testbed.research.papers import paralet, rail_only, routing, topoopt, vclos
from testbed.research.papers.claim import Claim, Relation, Verdict
from testbed.research.papers.findings import Drawing, Findings, Paper

PAPERS = {
    "000": Paper("Routing for Large ML Models (arXiv:2503.05324)", routing.TEXT, routing.find),
    "001": Paper("Isolated Scheduling for Distributed Training Tasks (vClos, 2023)", vclos.TEXT, vclos.find),
    "002": Paper("TopoOpt (NSDI 2023)", topoopt.TEXT, topoopt.find),
    "003": Paper(
        "Rail-only: A Low-Cost High-Performance Network for Training LLMs (arXiv:2307.12169v5)",
        rail_only.TEXT,
        rail_only.find,
    ),
    "004": Paper(
        "Network Load Balancing with Parallel Flowlets for AI Training Clusters (ParaLet, NAIC 2024)",
        paralet.TEXT,
        paralet.find,
    ),
}
"""Papers by their number in docs/papers/index.md."""

__all__ = ["PAPERS", "Claim", "Drawing", "Findings", "Paper", "Relation", "Verdict"]
