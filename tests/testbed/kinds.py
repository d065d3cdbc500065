# SPDX-License-Identifier: Apache-2.0
"""The workloads whose data the testbed checks, as a spec can name them."""

from testbed.workloads import VerifiedWorkload, kinds, workload_class

_CLASSES = {name: workload_class(kind) for name, kind in kinds().items()}
KINDS: dict[str, type[VerifiedWorkload]] = {
    name: found for name, found in _CLASSES.items() if issubclass(found, VerifiedWorkload)
}
