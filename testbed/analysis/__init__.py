# SPDX-License-Identifier: Apache-2.0
"""Observations of runs, and the metrics computed from them."""
