# SPDX-License-Identifier: Apache-2.0
"""Commands on a fabric that is up: at the prompt of `paralet shell`, and from other processes of the same user."""
