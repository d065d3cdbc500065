# SPDX-License-Identifier: Apache-2.0
"""Planners: pure functions from a topology and its traffic to the path of every flow."""
