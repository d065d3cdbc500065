# SPDX-License-Identifier: Apache-2.0
"""Designs of training clusters: fabrics, scales and strategies for a job, with time, cost, power and failures."""
