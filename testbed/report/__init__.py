# SPDX-License-Identifier: Apache-2.0
"""`report.html` and its plots."""

from testbed.report.page import write

__all__ = ["write"]
