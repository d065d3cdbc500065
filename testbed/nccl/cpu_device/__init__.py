# SPDX-License-Identifier: Apache-2.0
"""A device on the CPU for an unmodified NCCL, so that it runs its collectives on a machine without a GPU.

`attach` loads a `libnccl.so.2` and puts functions of `lib/libparalet-cpu-device.so` in place of the CUDA runtime that
the library carries, in this process's memory; the file stays as it is. Each block of a launch runs on a thread of its
own. docs/nccl.md says what the device serves.

    nccl = wheels.installed()["2.32.3"]
    runtime = attach(nccl)  # a library with cudaMalloc, cudaStreamCreate, ...

With `PARALET_CPU_DEVICE_DEBUG=1` the device logs launches, calls that are not supported and driver functions that do
not exist. `PARALET_CPU_DEVICE_BUS_ID` is its address on the PCI bus, by default `ffff:00:00.0`; ranks with the same
`NCCL_HOSTID` need one each.
"""

from testbed.nccl.cpu_device.native import attach

__all__ = ["attach"]
