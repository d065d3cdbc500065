# SPDX-License-Identifier: Apache-2.0
"""The path service: hosts announce elephants, a planner chooses paths, source ports pin them, failures move them.

docs/path-service.md has the protocol. Without I/O: `messages` (the protocol's messages), `ports` (the inverse of the
switches' hash), `parties` (connected devices), `elephants`, `planning` (planners that are kept up), `places` (of
connections that cannot move), `routing`,
`expected` (forecasts), `failover`, `assignments`, `views`, `service` (events in, messages out), `links` (names of
links), `constraints` (what limits paths beside the plan), `manual_pins`, `limits`, `replay` (of the log). With I/O:
`connection` and `server` (TCP), `admin` and `admin_server` (operators), `control` (what operators ask for, and its
store), `journal` (the log), `log_file` (its file), `token`, `run` (the process).
"""
