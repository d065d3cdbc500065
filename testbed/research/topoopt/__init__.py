# SPDX-License-Identifier: Apache-2.0
"""Parallelisation strategy and topology found together (W. Wang et al., "TopoOpt", NSDI 2023, section 4.1)."""
