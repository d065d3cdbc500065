# SPDX-License-Identifier: Apache-2.0
"""Rail-only: A Low-Cost High-Performance Network for Training LLMs with Trillion Parameters (arXiv 2307.12169v5)."""

from testbed.research.papers.rail_only.claims import claims, find

__all__ = ["claims", "find"]
