# SPDX-License-Identifier: Apache-2.0
"""CUDA's multi-process service (MPS) for the duration of a run.

Kernels of several processes on one GPU are time-sliced, some milliseconds each. NCCL's kernels wait for each other, so
time slices and not the network determine the duration of a small collective. With MPS the kernels run at the same time.
The service is a process of the user in its own folder and does not change the GPU's settings.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import InputError

_CONTROL = "nvidia-cuda-mps-control"
_TIMEOUT_S = 30.0


@contextmanager
def service(environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run the service; gives the environment that makes a process its client. Raises InputError when there is none."""
    with tempfile.TemporaryDirectory(prefix="paralet-mps-") as folder:
        pipes, logs = Path(folder, "pipes"), Path(folder, "logs")
        pipes.mkdir()
        logs.mkdir()
        client = environment | {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
        _control(["-d"], "", client)
        try:
            yield client
        finally:
            _control([], "quit -t 5\n", client)


def _control(arguments: list[str], command: str, environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            [_CONTROL, *arguments],
            input=command,
            env=environment,
            stdout=subprocess.DEVNULL,  # the service inherits these; reading them would wait for its end
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise InputError(f"--mps: {_CONTROL} is not on this machine; run without --mps") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"--mps: {_CONTROL} did not answer within {_TIMEOUT_S:g} s; run without --mps") from error
    if done.returncode:
        raise InputError(f"--mps: {_CONTROL} ended with status {done.returncode}; run without --mps")
