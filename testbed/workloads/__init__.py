# SPDX-License-Identifier: Apache-2.0
"""The workloads that a spec can name: `kinds` lists them, and each has a module here."""

from testbed.workloads.base import Buffers, Elements, Order, Talk, Transfer, VerifiedWorkload, Workload
from testbed.workloads.files import PythonFiles
from testbed.workloads.kinds import AnyWorkload, ByKind, kinds, workload_class

__all__ = [
    "AnyWorkload",
    "Buffers",
    "ByKind",
    "Elements",
    "Order",
    "PythonFiles",
    "Talk",
    "Transfer",
    "VerifiedWorkload",
    "Workload",
    "kinds",
    "workload_class",
]
