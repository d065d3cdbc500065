# SPDX-License-Identifier: Apache-2.0
"""A fabric of routers: namespaces of Linux that forward by the kernel's ECMP, with eBGP by FRR."""
