# SPDX-License-Identifier: Apache-2.0
"""The path service: hosts announce elephants, a planner chooses paths, source ports pin them, failures move them.

docs/path-service.md has the protocol. Without I/O: `messages` (the protocol's messages), `ports` (the inverse of the
switches' hash), `parties` (connected devices), `elephants`, `planning` (planners that are kept up), `routing`,
`expected` (forecasts), `failover`, `assignments`, `views`, `service` (events in, messages out), `links` (names of
links), `limits`. With I/O: `connection` and `server` (TCP), `admin` and `admin_server` (operators), `journal` (the
event log and its replay), `log_file` (the event log's file), `token`, `run` (the process).
"""
