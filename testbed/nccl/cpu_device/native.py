# SPDX-License-Identifier: Apache-2.0
"""The native library of the CPU device, by ctypes."""

import ctypes
import os
from pathlib import Path

from testbed.errors import InputError
from testbed.nccl.cpu_device import layout

_LIBRARIES = Path(__file__).parent / "lib"
_RUNTIME = _LIBRARIES / "libparalet-cpu-device.so"
_NVML = _LIBRARIES / "libnvidia-ml.so.1"

_ERROR_BYTES = 1024

EXCLUDED = {
    "NCCL_PROTO": "LL,Simple",  # no LL128
    "NCCL_PAT_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_COLLNET_ENABLE": "0",
    "NCCL_LOCAL_REGISTER": "0",
    "NCCL_GRAPH_REGISTER": "0",
}
"""Settings of NCCL by which it does not choose what the kernels cannot run. `attach` sets those that are not set."""


def runtime() -> Path:
    """The library with the CUDA runtime's interface on the CPU. Raises InputError where it has not been built."""
    for library in (_RUNTIME, _NVML):
        if not library.is_file():
            raise InputError(f"the CPU device has not been built ({library} is missing): run `make setup` on x86-64")
    return _RUNTIME


def fields() -> tuple[layout.Wanted, ...]:
    """The members of NCCL's structs that the device reads, in its order."""
    library = ctypes.CDLL(str(runtime()))
    library.paralet_cpu_device_layout_fields.restype = ctypes.c_char_p
    text: bytes = library.paralet_cpu_device_layout_fields()
    return layout.parse_wanted(text.decode())


def attach(nccl: Path) -> Path:
    """Load `nccl`, a `libnccl.so.2`, and make it work on the CPU. Returns `runtime()`.

    Call it before anything else in the process calls that NCCL or loads NVML. Variables of `EXCLUDED` that the
    environment lacks are set. A process drives one NCCL; attaching the
    same file again does nothing. Raises InputError with one sentence where this NCCL cannot be driven.
    """
    path = nccl.resolve()
    for name, value in EXCLUDED.items():
        os.environ.setdefault(name, value)
    found = layout.of_library(path, fields())
    device = ctypes.CDLL(str(runtime()))
    # NCCL loads libnvidia-ml.so.1 by that name, which is then this one.
    ctypes.CDLL(str(_NVML), mode=ctypes.RTLD_GLOBAL)
    values = (ctypes.c_uint32 * len(found.values))(*found.values)
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    function = device.paralet_cpu_device_attach
    function.argtypes = (
        ctypes.c_char_p,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_uint32),
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    if function(str(path).encode(), found.generation, values, len(values), error, _ERROR_BYTES):
        raise InputError(f"NCCL cannot run on the CPU device: {error.value.decode(errors='replace')}")
    return _RUNTIME
