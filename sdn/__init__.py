# SPDX-License-Identifier: Apache-2.0
"""Decisions about paths, and the application that carries them out on switches."""
