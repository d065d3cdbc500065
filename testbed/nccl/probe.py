# SPDX-License-Identifier: Apache-2.0
"""`python -m testbed.nccl.probe`: libraries, devices and plugin of this machine, in a separate process.

Takes one JSON object {"libraries", "plugin"} (`Libraries.words`; a path or null) on standard input and prints another:
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
from testbed.nccl.devices import Libraries
from testbed.nccl.libnccl import OLDEST, version_text

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Found:
    """The resources of a run."""

    device: str
    """"gpu" or "cpu"."""
    gpus: tuple[str, ...]
    """Names; none on the CPU device."""
    nccl_version: str
    cuda_driver: str
    """The CUDA release that the driver supports; on the CPU device, the one that it claims."""
    cuda_runtime: str


def ask(libraries: Libraries, plugin: Path | None, environment: Mapping[str, str]) -> Found:
    """Probe in another process. Raises InputError with the first missing resource."""
    question = json.dumps({"libraries": libraries.words(), "plugin": str(plugin) if plugin else None})
    argv = [sys.executable, "-m", "testbed.nccl.probe"]
    try:
        done = subprocess.run(
            argv, input=question, capture_output=True, text=True, timeout=_TIMEOUT_S, env=dict(environment)
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise InputError(_with_remedy(libraries, f"CUDA did not answer within {_TIMEOUT_S:g} s")) from error
    except ValueError as error:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(f"loading {libraries.nccl} ended with status {done.returncode}: {last}") from error
    if "missing" in answer:
        raise InputError(answer["missing"])
    return Found(**answer | {"gpus": tuple(answer["gpus"])})


def look(libraries: Libraries, plugin: Path | None) -> Found:
    """Load all libraries. Raises TestbedError when one is missing or does not fit."""
    cuda, nccl = libraries.load()
    driver, runtime = cuda.versions()
    version = nccl.version()
    if version < OLDEST:
        raise TestbedError(
            f"{libraries.nccl} is NCCL {version_text(version)}; the plugin needs {version_text(OLDEST)} or later"
        )
    gpus = [] if libraries.kind == "cpu" else _gpus(libraries, cuda, driver, runtime)
    if plugin is not None:
        try:
            ctypes.CDLL(str(plugin))
        except OSError as error:
            raise TestbedError(f"the plugin cannot be loaded on this machine: {error}") from error
    return Found(
        device=libraries.kind,
        gpus=tuple(gpus),
        nccl_version=version_text(version),
        cuda_driver=_cuda_text(driver),
        cuda_runtime=_cuda_text(runtime),
    )


def _gpus(libraries: Libraries, cuda: Cuda, driver: int, runtime: int) -> list[str]:
    """Names of the GPUs. Raises TestbedError where CUDA cannot use one."""
    if driver == 0:
        raise TestbedError(_with_remedy(libraries, "this machine has no working NVIDIA driver"))
    if driver // 1000 < runtime // 1000:
        raise TestbedError(
            f"{libraries.cudart} is CUDA {_cuda_text(runtime)}, the driver can do {_cuda_text(driver)}; name an older "
            "libcudart with --cudart"
        )
    try:
        names = cuda.device_names()
    except TestbedError as error:
        raise TestbedError(_with_remedy(libraries, f"CUDA cannot use the GPU: {error}")) from error
    if not names:
        raise TestbedError(_with_remedy(libraries, "CUDA sees no GPU"))
    return names


def _with_remedy(libraries: Libraries, sentence: str) -> str:
    return f"{sentence}; --device cpu runs without a GPU" if libraries.kind == "gpu" else sentence


def _cuda_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def main() -> int:
    """Entry point."""
    question = json.load(sys.stdin)
    plugin = Path(question["plugin"]) if question["plugin"] else None
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to standard output, which is for the answer
    try:
        json.dump(asdict(look(Libraries.of_words(question["libraries"]), plugin)), answers)
    except TestbedError as error:
        json.dump({"missing": str(error)}, answers)
    answers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
