# SPDX-License-Identifier: Apache-2.0
"""A device on the CPU for an unmodified NCCL, so that it runs its collectives on a machine without a GPU.

`attach` loads a `libnccl.so.2` and puts functions of `lib/libparalet-cpu-device.so` in place of the CUDA runtime that
the library carries, in this process's memory; the file stays as it is. docs/nccl.md says how, and what the device
does not do.
"""

from testbed.nccl.cpu_device.native import attach

__all__ = ["attach"]
