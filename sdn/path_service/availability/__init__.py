# SPDX-License-Identifier: Apache-2.0
"""Two path services of which one leads: docs/high-availability.md.

`pair` decides, without a clock or a socket, which of the two leads; `messages` has what they say to each other.
"""
