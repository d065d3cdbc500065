# SPDX-License-Identifier: Apache-2.0
"""Experiments on the packet fabric: the same specs and the same observations as on an emulated one, simulated."""

from testbed.packet.runs import observe

__all__ = ["observe"]
