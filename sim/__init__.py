# SPDX-License-Identifier: Apache-2.0
"""Simulated fabrics of any size: a fluid model and a packet simulation. Neither needs root.

`links`, `paths` and `messages` are shared by both. `fluid` and `packet` do not import each other.
"""
