# SPDX-License-Identifier: Apache-2.0
"""Pinning by measured paths: which ports are known to take which way, and plans over the ways that are known. Pure.

`tables`: source ports by way for each pair of NICs, as probes saw them. `models`: which ports to probe where switches
hash affinely. `pace`: how fast. `discovery`: which ports of which pairs next. `known_paths`: a plan that grows with
what is known. `fabric`: what answers mean on a topology. `pinning`: all of these together. docs/measured-paths.md
explains the whole.
"""
