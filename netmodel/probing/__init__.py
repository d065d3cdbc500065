# SPDX-License-Identifier: Apache-2.0
"""Which source port takes which path, from probes: data in, data out.

A host sends packets with a flow's own 5-tuple and a small TTL; the router at which the TTL runs out names itself
(ICMP time exceeded). This package sends none of them. `observations`: what probes saw, and its files. `paths`: the
paths of a pair of hosts, from these. `affine`: all ports of a pair from few. `inference`: the topology. `simulated`:
what probes would see on a known fabric. docs/measured-paths.md explains the whole.
"""
