# SPDX-License-Identifier: Apache-2.0
"""The folders of the native engine include only what lies below them."""

import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "hostlib" / "native" / "src"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

# The folders that each folder may include besides itself.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "wire": {"base"},
    "backend": {"base"},
    "paths": {"base", "wire"},
    "soft": {"base", "wire", "backend"},
    "tcp": {"base", "wire", "backend"},
    "verbs": {"base", "wire", "backend"},
    "sharded": {"base", "backend"},
    "fused": {"base", "backend"},
    "prober": {"base", "wire"},
    "path_client": {"base", "wire", "paths", "prober"},
    "engine": {"base", "wire", "backend", "paths", "path_client"},
    "settings": {"base", "verbs", "path_client", "engine"},  # verbs: the RoCE ports that the machine has
    "collectives": {"base", "wire", "engine"},
}
# The only files that know the implementations of `Backend` and of `PathPolicy`.
BACKENDS = "engine/backend_factory.cpp"
POLICIES = "engine/policy_factory.cpp"
# What the rest of the engine may include of the folders of policies: the interface, and the options of the service.
OF_POLICIES = {"paths/path_policy.hpp", "paths/path_client_counters.hpp", "path_client/options.hpp"}
# Makes the implementations of the interface in its own header, which include that header.
MAKER = "soft/congestion_control.cpp"


def test_every_folder_has_a_rule() -> None:
    folders = {path.name for path in SOURCES.iterdir() if path.is_dir()}
    assert folders == set(ALLOWED)


def test_includes_are_written_from_src() -> None:
    wrong = [
        f"{path.relative_to(SOURCES)}: {included}"
        for path in sources()
        for included in INCLUDE.findall(path.read_text())
        if not (SOURCES / included).is_file()
    ]
    assert not wrong, 'write includes from hostlib/native/src, as in #include "soft/rc_qp.hpp"'


def test_folders_include_only_folders_below_them() -> None:
    wrong = []
    for path in sources():
        name = path.relative_to(SOURCES).as_posix()
        folder = name.split("/")[0]
        allowed = ALLOWED[folder] | {folder}
        if name == BACKENDS:
            allowed |= {"soft", "tcp", "verbs", "sharded", "fused"}
        wrong += [
            f"{name}: {included}"
            for included in INCLUDE.findall(path.read_text())
            if included.split("/")[0] not in allowed
        ]
    assert not wrong, "a folder may include only what ALLOWED names"


def test_modules_include_each_other_one_way_only() -> None:
    """A module is a header and the source of the same name."""
    modules: dict[str, set[str]] = {}
    for path in sources():
        if path.relative_to(SOURCES).as_posix() == MAKER:
            continue
        module = path.relative_to(SOURCES).with_suffix("").as_posix()
        included = {name.rpartition(".")[0] for name in INCLUDE.findall(path.read_text())}
        modules.setdefault(module, set()).update(included - {module})
    TopologicalSorter(modules).prepare()  # raises CycleError, which names the modules


def test_only_the_factory_knows_the_policies() -> None:
    wrong = [
        f"{path.relative_to(SOURCES)}: {included}"
        for path in sources()
        if path.parent.name == "engine" and path.relative_to(SOURCES).as_posix() != POLICIES
        for included in INCLUDE.findall(path.read_text())
        if included.split("/")[0] in {"paths", "path_client"} and included not in OF_POLICIES
    ]
    assert not wrong, f"the engine uses a policy through its interface; only {POLICIES} makes one"


def sources() -> list[Path]:
    return sorted(path for path in SOURCES.rglob("*") if path.suffix in {".cpp", ".hpp"})


MOST_LINES = 600
NATIVE = SOURCES.parent
TYPE = re.compile(r"^(?:class|struct) (\w+)(?: final)?(?: : .*)? \{$")
MEMBER_FUNCTION = re.compile(r"^[^\s#/}].*?\b(\w+)::[^\s(]+\(")


def test_no_file_and_no_class_is_longer_than_a_reader_can_follow() -> None:
    """A class is its declaration and its member functions, in the header and the source of a module."""
    lines: Counter[str] = Counter()
    for folder in ("src", "python", "fuzz"):
        for path in sorted(NATIVE.joinpath(folder).rglob("*.[ch]pp")):
            name, inside = path.relative_to(NATIVE), ""
            for line in path.read_text().splitlines():
                lines[f"the file {name}"] += 1
                begins = not inside and not line.endswith(";") and (TYPE.match(line) or MEMBER_FUNCTION.match(line))
                if begins:
                    inside = f"the class {begins[1]} in {name.with_suffix('')}"
                if inside:
                    lines[inside] += 1
                if line.startswith("}") or (begins and line.endswith("}")):
                    inside = ""
    assert not {what: count for what, count in lines.items() if count > MOST_LINES}
