# SPDX-License-Identifier: Apache-2.0
"""Planned source ports for programs that know nothing of it: the library that is loaded into them, in ``native/``."""
