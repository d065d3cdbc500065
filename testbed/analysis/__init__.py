# SPDX-License-Identifier: Apache-2.0
"""What a run observed, and the metrics computed from it."""
