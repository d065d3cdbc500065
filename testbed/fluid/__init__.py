# SPDX-License-Identifier: Apache-2.0
"""Experiments on the fluid fabric: the same specs and the same observations as on an emulated one, computed."""

from testbed.fluid.runs import observe

__all__ = ["observe"]
