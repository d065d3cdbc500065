# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.nccl.probe`: libraries, GPUs and plugin of this machine, in a separate process.

Takes one JSON object {"nccl", "cudart", "plugin"} (paths; plugin may be null) on standard input and prints another:
`Found`, or {"missing": SENTENCE}.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.errors import InputError, TestbedError
from testbed.nccl.cuda import Cuda
from testbed.nccl.libnccl import OLDEST, Nccl

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Found:
    """The resources of a run."""

    gpus: tuple[str, ...]
    nccl_version: str
    cuda_driver: str
    """The CUDA release that the driver supports."""
    cuda_runtime: str
    is_stub: bool
    """Whether a library is the tests' stub, so that figures are not those of a GPU."""


def ask(nccl: Path, cudart: Path, plugin: Path | None, environment: Mapping[str, str]) -> Found:
    """Probe in another process. Raises InputError with the first missing resource."""
    question = json.dumps({"nccl": str(nccl), "cudart": str(cudart), "plugin": str(plugin) if plugin else None})
    argv = [sys.executable, "-m", "testbed.nccl.probe"]
    try:
        done = subprocess.run(
            argv, input=question, capture_output=True, text=True, timeout=_TIMEOUT_S, env=dict(environment)
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"CUDA did not answer within {_TIMEOUT_S:g} s; does nvidia-smi?") from error
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(f"loading {nccl} and {cudart} ended with status {done.returncode}: {last}") from error
    if "missing" in answer:
        raise InputError(answer["missing"])
    return Found(**answer | {"gpus": tuple(answer["gpus"])})


def look(nccl_path: Path, cudart_path: Path, plugin: Path | None) -> Found:
    """Load all libraries. Raises TestbedError when one is missing or does not fit."""
    cuda, nccl = Cuda(cudart_path), Nccl(nccl_path)
    driver, runtime = cuda.versions()
    if driver == 0:
        raise TestbedError("this machine has no NVIDIA driver, and so no GPU that NCCL could use")
    if driver // 1000 < runtime // 1000:
        raise TestbedError(
            f"{cudart_path} is CUDA {_cuda_text(runtime)}, the driver can do {_cuda_text(driver)}; name an older "
            "libcudart with --cudart"
        )
    gpus = cuda.device_names()
    if not gpus:
        raise TestbedError("CUDA sees no GPU")
    version = nccl.version()
    if version < OLDEST:
        raise TestbedError(f"{nccl_path} is NCCL {_nccl_text(version)}; the plugin needs {_nccl_text(OLDEST)} or later")
    if plugin is not None:
        try:
            ctypes.CDLL(str(plugin))
        except OSError as error:
            raise TestbedError(f"the plugin cannot be loaded on this machine: {error}") from error
    return Found(
        gpus=tuple(gpus),
        nccl_version=_nccl_text(version),
        cuda_driver=_cuda_text(driver),
        cuda_runtime=_cuda_text(runtime),
        is_stub=cuda.is_stub or nccl.is_stub,
    )


def _nccl_text(version: int) -> str:
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def _cuda_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def main() -> int:
    """Entry point."""
    question = json.load(sys.stdin)
    plugin = Path(question["plugin"]) if question["plugin"] else None
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to standard output, which is for the answer
    try:
        json.dump(asdict(look(Path(question["nccl"]), Path(question["cudart"]), plugin)), answers)
    except TestbedError as error:
        json.dump({"missing": str(error)}, answers)
    answers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
