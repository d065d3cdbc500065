# SPDX-License-Identifier: Apache-2.0
"""The OpenFlow app: programs switches so that they forward as `netmodel.forwarding` predicts."""
