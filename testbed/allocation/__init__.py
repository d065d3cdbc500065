# SPDX-License-Identifier: Apache-2.0
"""What an experiment gets before it runs: hosts for its ranks, UDP ports and optical circuits for its demands."""
