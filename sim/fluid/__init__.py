# SPDX-License-Identifier: Apache-2.0
"""The fluid model: messages over a topology as flows with max-min fair rates. docs/fluid.md describes the model."""

from sim.fluid.simulation import Messages, Simulation

__all__ = ["Messages", "Simulation"]
