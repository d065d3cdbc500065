# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, each of which measures something of ours and a peer in one run. To add one: a function in `BENCHES`."""

from collections.abc import Callable

from testbed.bench import transport
from testbed.bench.frame import Result, Row

BENCHES: dict[str, Callable[[], Result]] = {"transport": transport.measure}

__all__ = ["BENCHES", "Result", "Row"]
