# SPDX-License-Identifier: Apache-2.0
"""The workloads whose data the testbed checks, as a spec can name them."""

from typing import get_args

from testbed.workloads import AnyWorkload, VerifiedWorkload

KINDS: dict[str, type[VerifiedWorkload]] = {
    workload.model_fields["kind"].default: workload
    for workload in get_args(get_args(AnyWorkload)[0])
    if issubclass(workload, VerifiedWorkload)
}
