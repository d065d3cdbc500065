# SPDX-License-Identifier: Apache-2.0
"""Builds the native parts with CMake; everything else about the package is in pyproject.toml.

The CMake build tree stays under build/, so that a second build compiles only what changed. An editable install, and
``python setup.py build_ext --inplace``, put the modules, the native programs, the NCCL net plugin and the CPU device
into the packages of the working tree. PARALET_PARTS=models leaves out all but what the models need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PARTS = os.environ.get("PARALET_PARTS", "all")
"""`all`, or `models` for what the models need alone, about a fifth of the C++."""
if PARTS not in ("all", "models"):
    raise SystemExit(f"PARALET_PARTS is '{PARTS}': it may be all or models")


def commit() -> str:
    """The commit of these sources: of the checkout, or PARALET_COMMIT where they come without Git's folder."""
    if not (ROOT / ".git").exists():
        return os.environ.get("PARALET_COMMIT", "unknown")
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]
    try:
        told = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"], capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return told.stdout.strip() or "unknown"


def pybind11_files() -> Path:
    """The folder with pybind11's files for CMake, by a name that is always the same.

    pip puts pybind11 into a folder with a new name for each build, and a compiler cache would compile again for it.
    """
    import pybind11

    files = Path(pybind11.get_cmake_dir())
    link, prefix = ROOT / "build" / "pybind11", files.parents[2]
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(prefix)
    return link / files.relative_to(prefix)


class FreshBuild(build):
    """Begins without what an earlier build has left for its wheel, such as the engine in one with the models alone."""

    def run(self) -> None:
        for earlier in (ROOT / "build").glob("lib.*"):
            shutil.rmtree(earlier)
        super().run()


class CMakeBuild(build_ext):
    """Installs the CMake component ``python`` into the packages: hostlib._engine, the native programs, the plugin."""

    def run(self) -> None:
        in_place = self.inplace or self.editable_mode
        # One tree for both, so that a wheel after an editable install compiles nothing again.
        build_tree = ROOT / "build" / "cmake" / "release"
        destination = ROOT if in_place else Path(self.build_lib).resolve()
        self.cmake(
            *("-S", str(ROOT), "-B", str(build_tree), "-G", "Ninja"),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DPARALET_PYTHON=ON",
            f"-DPARALET_ONLY_MODELS={'ON' if PARTS == 'models' else 'OFF'}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DPARALET_COMMIT={commit()}",
            f"-Dpybind11_DIR={pybind11_files()}",
        )
        self.cmake("--build", str(build_tree), "--target", "paralet_python")
        self.cmake("--install", str(build_tree), "--component", "python", "--prefix", str(destination))
        if not in_place or not (ROOT / ".git").exists():
            (destination / "testbed" / "commit").write_text(commit())
        if not in_place:
            # Names of functions stay, for perf and stack traces. Numbers of lines are most of a wheel.
            built = [*destination.glob("**/*.so"), *destination.glob("**/bin/paralet-*")]
            subprocess.run(["strip", "--strip-debug", *built], check=True)

    def cmake(self, *arguments: str) -> None:
        if subprocess.run(["cmake", *arguments], cwd=ROOT).returncode:
            raise SystemExit(f"building the native parts failed: cmake {' '.join(arguments)}")


setup(ext_modules=[Extension("hostlib._engine", sources=[])], cmdclass={"build": FreshBuild, "build_ext": CMakeBuild})
