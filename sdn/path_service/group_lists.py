# SPDX-License-Identifier: Apache-2.0
"""The next hops of switches as JSON has them. Only msgspec is imported here: operators' commands are in the base."""

from typing import TypeAlias

import msgspec


class Group(msgspec.Struct, frozen=True):
    """A group of one switch, and the addresses that have it."""

    ports: list[int]
    addresses: list[str]


Listed: TypeAlias = dict[str, list[Group]]
"""`next_hops.NextHops` by switch, each group once."""
