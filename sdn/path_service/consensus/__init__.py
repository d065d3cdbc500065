# SPDX-License-Identifier: Apache-2.0
"""Path services that share a consensus store, in which one of them is elected: docs/high-availability.md.

`store` is what such a store has to do, and `etcd_store` does it with etcd; `member` guards a server by it.
"""
