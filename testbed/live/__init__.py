# SPDX-License-Identifier: Apache-2.0
"""What happens now, computed from the live counters of running processes. Pure: no terminal, files or clocks."""
