# SPDX-License-Identifier: Apache-2.0
"""A rank's program over its own sockets, whose ports the path service plans: it runs under `paralet pin`."""

import sys
from collections.abc import Mapping, Sequence

from testbed.run import agent_messages as messages
from testbed.run.native_rank import plugin_environment


def pinned(
    argv: Sequence[str], environment: Mapping[str, str], command: messages.Prepare, device: messages.DeviceConfig
) -> tuple[list[str], dict[str, str]]:
    """The words and variables to start a program with: as they are, unless a path service plans for its sockets."""
    if command.transport != "socket" or device.policy != "controller":
        return list(argv), dict(environment)
    wait = [] if device.assign_wait_s is None else ["--wait", f"{device.assign_wait_s:g}"]
    words = [sys.executable, "-m", "testbed", "pin", *wait, "--", *argv]
    return words, {**environment, **plugin_environment(device)}
