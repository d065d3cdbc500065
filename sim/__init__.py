# SPDX-License-Identifier: Apache-2.0
"""Simulated fabrics of any size: a fluid model and a packet simulation. Neither needs privileges."""
