# SPDX-License-Identifier: Apache-2.0
"""Isolated Scheduling for Distributed Training Tasks in GPU Clusters (vClos, 2023)."""

from testbed.research.papers.vclos.claims import find

__all__ = ["find"]
