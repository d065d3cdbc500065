# SPDX-License-Identifier: Apache-2.0
"""A rank in the tests of backend paralet: runs the scenarios that standard input names, one JSON list a line.

Arguments: rank, size, file of the store, backend.
"""

from __future__ import annotations

import json
import sys
import traceback
from datetime import timedelta

import scenarios  # beside this program
import torch.distributed as dist

import paralet_torch  # noqa: F401  # registers the backend


def main() -> None:
    rank, size, store, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=120)
    )
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"result": getattr(scenarios, name)(*arguments)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print("answer " + json.dumps(answer), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
