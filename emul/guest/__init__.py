# SPDX-License-Identifier: Apache-2.0
"""Run a command on a Debian kernel in QEMU, over this machine's file system.

A container or a small virtual machine often cannot load the kernel modules of SoftRoCE (rdma_rxe) and of the Open
vSwitch datapath. A Debian kernel has them. QEMU runs it without KVM: slowly, but without privileges for virtualisation.
"""

from emul.guest.command import GuestOptions
from emul.guest.kernel import GuestError, GuestKernel, find_kernel
from emul.guest.runner import run

__all__ = ["GuestError", "GuestKernel", "GuestOptions", "find_kernel", "run"]
