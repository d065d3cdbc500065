# SPDX-License-Identifier: Apache-2.0
"""Running an experiment on a simulated fabric, with the observations that an emulated one gives."""
