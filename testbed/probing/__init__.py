# SPDX-License-Identifier: Apache-2.0
"""What `paralet probe` asks of the fabric, and what follows from the answers."""
