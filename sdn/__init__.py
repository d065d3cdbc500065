# SPDX-License-Identifier: Apache-2.0
"""Decisions: planners that choose paths, and the os-ken app that programs switches. Importing it imports no os-ken."""
