# SPDX-License-Identifier: Apache-2.0
"""TopoOpt: Co-optimizing Network Topology and Parallelization Strategy for Distributed Training Jobs (NSDI 2023)."""

from testbed.research.papers.topoopt.claims import find

__all__ = ["find"]
