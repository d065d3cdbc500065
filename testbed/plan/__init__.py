# SPDX-License-Identifier: Apache-2.0
"""Planning before a run: where ranks go, what they demand of the fabric, and which ports and circuits they get."""
