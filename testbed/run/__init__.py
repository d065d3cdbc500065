# SPDX-License-Identifier: Apache-2.0
"""Running an experiment on an emulated fabric: the runner, one agent per rank, and what they say to one another."""
