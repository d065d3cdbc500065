# SPDX-License-Identifier: Apache-2.0
"""Benchmarks. Each measures a part of paralet and a peer (a reference) in the same run.

To add a benchmark: a module with a function `measure`, and a row in `BENCHES` of `testbed/cli/bench.py`.
"""

from testbed.bench.frame import Result, Row

__all__ = ["Result", "Row"]
