# SPDX-License-Identifier: Apache-2.0
"""Network Load Balancing with Parallel Flowlets for AI Training Clusters (NAIC 2024): ParaLet itself."""

from testbed.research.papers.paralet.claims import find

__all__ = ["find"]
