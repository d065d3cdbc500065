# SPDX-License-Identifier: Apache-2.0
"""O. Cohen et al., "Routing for Large ML Models" (arXiv:2503.05324): its theorems, and its evaluation in the model."""

from testbed.research.papers.routing.claims import find

__all__ = ["find"]
