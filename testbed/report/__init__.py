# SPDX-License-Identifier: Apache-2.0
"""`report.html` and its plots, and the comparison of several results."""

from testbed.report.compare import Compared, write_comparison
from testbed.report.page import write, write_plots

__all__ = ["Compared", "write", "write_comparison", "write_plots"]
