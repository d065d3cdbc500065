# SPDX-License-Identifier: Apache-2.0
"""Simulated fabrics of any size: a fluid model and a packet simulation; and clusters over time. None needs root.

`links`, `paths` and `messages` are shared by `fluid` and `packet`. `fluid`, `packet` and `cluster` do not import each
other.
"""
