# SPDX-License-Identifier: Apache-2.0
"""Run a command on another Linux kernel over this machine's file system, for what this machine's kernel cannot do.

The kernel's SoftRoCE (rdma_rxe) and Open vSwitch datapath are modules that a container or a small virtual machine often
cannot load. A Debian kernel has them; QEMU runs it without KVM, so it needs no right on this machine, and slowly.
"""

from emul.guest.command import GuestOptions
from emul.guest.kernel import GuestError, GuestKernel, find_kernel
from emul.guest.runner import run

__all__ = ["GuestError", "GuestKernel", "GuestOptions", "find_kernel", "run"]
