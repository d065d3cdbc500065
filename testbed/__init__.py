# SPDX-License-Identifier: Apache-2.0
"""Questions asked of the whole: workloads, specs, runs, metrics, reports and the ``paralet`` command line."""
