# SPDX-License-Identifier: Apache-2.0
"""The path service: hosts announce elephants, a planner decides, source ports pin the paths, failures move them.

Pure: `messages` (what may be said), `ports` (the inverse of the switches' hash), `parties` (who is connected and sends
to whom), `planning` (planners kept up), `service` (events in, messages out), `links` (names). With the world:
`server` and `connection` (TCP), `admin` (the operator's door), `journal` (the event log and its replay), `token`,
`run`. docs/path-service.md is the protocol.
"""
