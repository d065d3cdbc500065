# SPDX-License-Identifier: Apache-2.0
"""What the native engine was built from."""

from hostlib import _engine


def build_commit() -> str:
    """The first 12 digits of Git's commit, with "-dirty" where sources differed from it; "unknown" without Git."""
    return _engine.build()[1]
