# SPDX-License-Identifier: Apache-2.0
"""The packet fabric: messages as packets over queues, for what a fluid cannot answer.

A `Simulation` lets messages wait for one another and sends their packets over a topology's links. docs/packet.md says
what is modelled and what is not.
"""

from sim.packet.simulation import Congestion, Options, Receiver, Scheme, Simulation

__all__ = ["Congestion", "Options", "Receiver", "Scheme", "Simulation"]
