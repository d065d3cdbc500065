# SPDX-License-Identifier: Apache-2.0
"""Dumps of live counters, as `paralet stat --json` prints them on one host and `paralet stat --why` reads them."""

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import msgspec

from hostlib.stats import Survey
from paralet_pin.check import Report
from testbed.errors import InputError
from testbed.live.nccl_operations import RankOperations
from testbed.live.waits import Dump


def dump_of(survey: Survey, now_s: float, operations: Sequence[RankOperations] = ()) -> Dump:
    """The dump of a survey of this host at `now_s`, in seconds of the monotonic clock, with NCCL's operations."""
    return Dump(socket.gethostname(), now_s, survey.processes, tuple(operations))


def as_json(
    survey: Survey,
    operations: Sequence[RankOperations] = (),
    pinned: Sequence[Report] = (),
    indent: int | None = None,
) -> str:
    """The dump of a survey that was just taken, with the time of day and what agents of `paralet pin` say."""
    dump = dump_of(survey, time.monotonic(), operations)
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    processes = [asdict(process) for process in dump.processes]
    fields = {"time": when, "host": dump.host, "clock_s": dump.clock_s, "processes": processes}
    fields["operations"] = [asdict(operation) for operation in dump.operations]
    fields["pinned"] = msgspec.to_builtins(pinned)
    return json.dumps(fields, indent=indent)


def from_json(text: bytes, name: str) -> Dump:
    """Read a dump. Raises InputError, which says that the dump `name` is none, and why."""
    try:
        return msgspec.json.decode(text, type=Dump)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is not the output of `paralet stat --json`: {error}") from error
