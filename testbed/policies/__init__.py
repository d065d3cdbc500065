# SPDX-License-Identifier: Apache-2.0
"""The policies that a spec can name: `kinds` lists them, and `base` says what each of them answers."""

from testbed.policies.base import Division, Movement, Placed, PolicyKind
from testbed.policies.kinds import OURS, option_owners, policy_kind, policy_names

__all__ = ["OURS", "Division", "Movement", "Placed", "PolicyKind", "option_owners", "policy_kind", "policy_names"]
