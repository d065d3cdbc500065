# SPDX-License-Identifier: Apache-2.0
"""Numbers of papers beside ours: one package per paper, with a check of its claims and the text of its page."""

from testbed.papers import paralet, rail_only, routing
from testbed.papers.claim import Claim, Relation, Verdict
from testbed.papers.findings import Drawing, Findings, Paper

PAPERS = {
    "000": Paper("Routing for Large ML Models (arXiv:2503.05324)", routing.TEXT, routing.find),
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
"""By the number of the paper in docs/papers/index.md."""

__all__ = ["PAPERS", "Claim", "Drawing", "Findings", "Paper", "Relation", "Verdict"]
