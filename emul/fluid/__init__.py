# SPDX-License-Identifier: Apache-2.0
"""The fluid fabric: messages over a topology as flows with max-min fair rates, for sizes that no machine emulates.

`Links` numbers a topology's links, `hashed_paths` and `spread_paths` say where switches send flows, and a `Simulation`
lets messages wait for one another and share the links. docs/fluid.md says what is modelled and what is not.
"""

from emul.fluid.links import Links
from emul.fluid.paths import hashed_paths, spread_paths
from emul.fluid.simulation import Messages, Paths, Simulation

__all__ = ["Links", "Messages", "Paths", "Simulation", "hashed_paths", "spread_paths"]
