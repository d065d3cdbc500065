# SPDX-License-Identifier: Apache-2.0
"""The packet simulation: messages as packets that cross queues, links and switches.

docs/packet.md says what is modelled and what is not.
"""

from sim.packet.simulation import Congestion, Options, Receiver, Scheme, Simulation

__all__ = ["Congestion", "Options", "Receiver", "Scheme", "Simulation"]
