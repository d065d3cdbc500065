# SPDX-License-Identifier: Apache-2.0
"""Run clang-tidy on every translation unit that changed since it was last found clean.

usage: scripts/tidy.py TREE...

Each TREE is a CMake build tree with a compile_commands.json. A translation unit stays clean while its command, its
source, the headers of this repository that it includes and the .clang-tidy files above it are the same. Clean units are
recorded as empty files under build/tidy/VERSION, so a fresh clone checks all of them once.

Units of one target that are compiled alike are checked in batches: a generated source includes them all, so clang-tidy
reads the headers once per batch. Its name starts with UnifiedSource, which makes the static analyzer treat the included
sources as the main file (AnalysisManager::isInCodeFile in clang/StaticAnalyzer/Core/PathSensitive/AnalysisManager.h).
"""

import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLEAN = ROOT / "build" / "tidy" / importlib.metadata.version("clang-tidy")
CLANG_TIDY = Path(sys.executable).with_name("clang-tidy")
"""From PyPI: it does not look at what system headers declare, and takes half of the time of Debian 12's version 14."""
BATCH = 32
"""The most units that are checked at once. Larger batches take less time in all, but share it badly between cores: the
headers of a test take 3 s of processor time, and the test itself a tenth of a second."""
_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Unit:
    """One translation unit of a build tree."""

    tree: Path
    source: Path
    command: str

    def key(self) -> str:
        """A digest of everything in this repository that clang-tidy's findings depend on."""
        digest = hashlib.sha256(self.command.encode())
        for path in sorted(self._headers() | {self.source} | set(_configurations(self.source))):
            digest.update(str(path.relative_to(ROOT)).encode())
            digest.update(_content(path))
        return digest.hexdigest()

    def options(self) -> tuple[str, ...]:
        """The compiler's options that findings depend on: without optimisation, debug information and the files."""
        words = shlex.split(self.command)
        return tuple(word for word in words[1 : words.index("-o")] if not re.fullmatch(r"-O\d|-g\d?", word))

    def target(self) -> Path:
        """The folder of CMake's target that the unit belongs to, CMakeFiles/NAME.dir."""
        words = shlex.split(self.command)
        output = self.tree / words[words.index("-o") + 1]
        return next((folder for folder in output.parents if folder.suffix == ".dir"), output)

    def _headers(self) -> set[Path]:
        """The headers of this repository that the source includes, also through others."""
        arguments = shlex.split(self.command)
        folders = [Path(word[2:]).resolve() for word in arguments if word.startswith("-I")]
        found: set[Path] = set()
        pending = [self.source]
        while pending:
            including = pending.pop()
            for name in _included(including):
                for folder in (including.parent, *folders):
                    header = (folder / name).resolve()
                    if header.is_file() and header.is_relative_to(ROOT):
                        if header not in found:
                            found.add(header)
                            pending.append(header)
                        break
        return found


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


@cache
def _included(path: Path) -> tuple[str, ...]:
    return tuple(name.decode() for name in _INCLUDE.findall(_content(path)))


def _configurations(source: Path) -> Iterator[Path]:
    """The .clang-tidy files that apply to a source."""
    for folder in source.parents:
        if (folder / ".clang-tidy").is_file():
            yield folder / ".clang-tidy"
        if folder == ROOT:
            return


def units(tree: Path) -> Iterator[Unit]:
    """The translation units of a tree whose sources are ours, without generated ones."""
    for entry in json.loads((tree / "compile_commands.json").read_text()):
        source = (Path(entry["directory"]) / entry["file"]).resolve()
        if source.is_relative_to(ROOT) and not source.is_relative_to(ROOT / "build"):
            yield Unit(tree, source, entry["command"])


def batches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    """The units in groups of at most BATCH that can be checked as one: of one target, with the same options.

    A unit in C is a group by itself: C has no unnamed namespaces to keep names of several sources apart.
    """
    alike: defaultdict[object, list[Unit]] = defaultdict(list)
    for unit in units:
        configuration = next(_configurations(unit.source))
        alike[unit.target(), unit.options(), unit.source.suffix, configuration].append(unit)
    for group in alike.values():
        count = len(group) if group[0].source.suffix == ".c" else -(-len(group) // BATCH)
        yield from (group[first::count] for first in range(count))


def findings(batch: list[Unit]) -> str:
    """The messages of clang-tidy about the units of a batch; empty if they are clean."""
    first = batch[0]
    names = "".join(f'#include "{unit.source}" // NOLINT(bugprone-suspicious-include)\n' for unit in batch)
    CLEAN.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CLEAN) as folder:
        unified = Path(folder, f"UnifiedSource{first.source.suffix}")
        unified.write_text(names)
        configuration = f"--config-file={next(_configurations(first.source))}"
        command = [str(CLANG_TIDY), "--quiet", configuration, str(unified), "--", *first.options()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def main(trees: list[str]) -> int:
    """Exit status 0: everything is clean. 1: there are findings, on standard output. 2: a usage error."""
    if not trees or any(not (Path(tree) / "compile_commands.json").is_file() for tree in trees):
        print("usage: scripts/tidy.py TREE..., each a CMake build tree with compile_commands.json", file=sys.stderr)
        return 2
    once = {unit.source: unit for tree in trees for unit in units(Path(tree).resolve())}
    pending = {unit: CLEAN / unit.key() for unit in once.values()}
    pending = {unit: key for unit, key in pending.items() if not key.exists()}
    # The largest batches first, so that no long one is left for the end.
    order = sorted(batches(pending), key=lambda batch: -sum(unit.source.stat().st_size for unit in batch))
    status = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for batch, said in zip(order, pool.map(findings, order), strict=True):
            if said:
                status = 1
                print(said)
            else:
                for unit in batch:
                    pending[unit].touch()
    print(f"clang-tidy: {len(pending)} of {len(once)} translation units had changed")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
