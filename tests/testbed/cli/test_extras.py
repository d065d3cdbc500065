# SPDX-License-Identifier: Apache-2.0
"""Every install does what it promises, and a command whose extra is missing names it.

Here Python runs without its site-packages, with links to the packages that an install would have. scripts/wheel.sh does
the same with pip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hostlib
from testbed.cli.commands import COMMANDS
from testbed.cli.extras import MODULES, WITHOUT_ENGINE

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEMO = "experiments/demo.yaml"


def asked_for(*extras: str) -> Iterator[Requirement]:
    """What `pip install 'paralet[EXTRAS]'` asks for, beside paralet."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    for text in (text for each in lists for text in each):
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            yield from asked_for(*requirement.extras)
        else:
            yield requirement


def with_their_own(requirements: Iterator[Requirement]) -> set[str]:
    """The names of distributions, and of those that they ask for."""
    found: set[str] = set()
    open_ = [(requirement.name, extra) for requirement in requirements for extra in ("", *requirement.extras)]
    while open_:
        name, extra = open_.pop()
        found.add(name)
        for text in distribution(name).requires or ():
            below = Requirement(text)
            if (below.marker is None or below.marker.evaluate({"extra": extra})) and below.name not in found:
                open_ += [(below.name, extra) for extra in ("", *below.extras)]
    return found


@pytest.fixture(scope="module")
def installs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("installs")


def install(folder: Path, *extras: str) -> Path:
    """A folder with the packages of an install, made on first use."""
    made = folder / ("-".join(extras) or "base")
    if not made.exists():
        made.mkdir()
        for name in with_their_own(asked_for(*extras)):
            package = distribution(name)
            for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
                if not (made / top).exists():
                    (made / top).symlink_to(str(package.locate_file(top)))
    return made


def paralet(packages: Path, *arguments: object, sources: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-B", "-m", "testbed", *map(str, arguments)],
        cwd=sources,
        env={**os.environ, "PYTHONPATH": f"{sources}:{packages}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_extras_are_those_of_the_project() -> None:
    providers = packages_distributions()
    for extra, modules in MODULES.items():
        provided = {canonicalize_name(name) for module in modules for name in providers[module]}
        wanted = {canonicalize_name(requirement.name) for requirement in asked_for(extra)}
        assert provided == wanted - {canonicalize_name(requirement.name) for requirement in asked_for()}
    every = {canonicalize_name(requirement.name) for requirement in asked_for("all")}
    assert every == {canonicalize_name(requirement.name) for requirement in asked_for(*MODULES)}


NEEDS = {
    ("bench", "fluid"): ("models", "paralet bench fluid"),
    ("bench", "path-service"): ("service", "paralet bench path-service"),
    ("cluster", "a.yaml"): ("models", "paralet cluster"),
    ("export", DEMO, "--to", "yaml"): ("models", "paralet export"),
    ("graph", DEMO): ("models", "paralet graph"),
    ("schema", "topology"): ("models", "paralet schema"),
    ("papers", "003", "--quick"): ("models", "paralet papers"),
    ("path-service", "status", "--token-file", "token"): ("service", "paralet path-service"),
    ("plan", "a.yaml"): ("models", "paralet plan"),
    ("predict", "h1", "h5", "--topology", DEMO): ("models", "paralet predict"),
    ("report", "results/demo"): ("models", "paralet report"),
    ("run", DEMO): ("models", "paralet run"),
    ("shell", DEMO): ("models", "paralet shell"),
    ("sweep", DEMO): ("models", "paralet sweep"),
    ("top", "--json", "--count", "1", "--topology", DEMO): ("models", "the load of links"),
}
IN_THE_BASE = {"capture", "doctor", "exec", "inspect", "link", "nccl", "pin", "plugin", "probe", "stat"}


def test_every_command_is_in_the_base_or_needs_an_extra() -> None:
    assert {words[0] for words in NEEDS} | IN_THE_BASE == set(COMMANDS)


@pytest.mark.parametrize("words", NEEDS, ids=" ".join)
def test_a_command_names_the_extra_that_is_missing(words: tuple[str, ...], installs: Path) -> None:
    extra, what = NEEDS[words]
    done = paralet(install(installs), *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith(f"paralet: {what} needs ")
    assert done.stderr.endswith(f": run pip install 'paralet[{extra}]'\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_the_base_has_the_help_of_every_command(name: str, installs: Path) -> None:
    done = paralet(install(installs), name, "--help")
    assert done.returncode == 0, done.stderr
    assert "Example" in done.stdout


def test_the_base_shows_the_plugin_and_the_machine(installs: Path) -> None:
    base = install(installs)
    assert "export NCCL_NET_PLUGIN=" in paralet(base, "plugin").stdout
    assert "PARALET_LANES" in paralet(base, "plugin", "--parameters").stdout
    done = paralet(base, "doctor", "--json")
    assert done.returncode == 0, done.stdout
    answer = json.loads(done.stdout)
    assert answer["uses"].items() >= {"plugin": True, "models": False, "service": False}.items()
    findings = {finding["name"]: finding for finding in answer["findings"]}
    assert findings["native engine"]["ok"]
    assert findings["extra models"]["remedy"] == "pip install 'paralet[models]'"
    assert findings["extra top"]["ok"]
    assert findings["extra top"]["remedy"] == "pip install 'paralet[top]'"


def test_the_base_looks_for_fabrics(installs: Path) -> None:
    done = paralet(install(installs), "inspect", "--json")
    assert done.returncode == 0, done.stderr
    assert "fabrics" in json.loads(done.stdout)
    done = paralet(install(installs), "exec", "--on", "nobody", "h1", "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith("paralet: no fabric nobody of this user is up: ")


def test_the_base_probes_paths(installs: Path) -> None:
    done = paralet(install(installs), "probe", "127.0.0.2", "--from", "127.0.0.1", "--ports", "2", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "paralet: 127.0.0.2 is this host: no router is on the way\n"


def test_the_base_looks_into_fabrics(installs: Path) -> None:
    for words in (("exec", "h1", "--", "true"), ("capture", "leaf1:1"), ("link", "leaf1", "spine1", "down")):
        done = paralet(install(installs), *words)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.startswith("paralet: no fabric of this user is up: "), done.stderr


def test_the_base_watches_devices(installs: Path, tmp_path: Path) -> None:
    base, pid = install(installs), os.getpid()
    with hostlib.Device("127.0.0.1", lanes=2) as sender, hostlib.Device("127.0.0.2", lanes=2) as receiver:
        sender.connect(receiver.listen().handle)
        assert "127.0.0.1" in paralet(base, "stat", pid).stdout
        assert json.loads(paralet(base, "stat", pid, "--json").stdout)["processes"][0]["pid"] == pid
        assert "paralet_device_tx_bytes_total" in paralet(base, "stat", pid, "--prometheus").stdout
        assert "Nothing is stuck" in paralet(base, "stat", pid, "--why").stdout
        assert json.loads(paralet(base, "top", pid, "--json", "--count", 1).stdout)["events"] == []
        refused = paralet(base, "top", pid, "--picture", tmp_path / "a.svg")
    assert refused.stderr == "paralet: the screen of paralet top needs textual: run pip install 'paralet[top]'\n"
    assert refused.returncode == 2


def test_extra_top_draws_the_screen(installs: Path, tmp_path: Path) -> None:
    with hostlib.Device("127.0.0.1", lanes=2):
        done = paralet(install(installs, "top"), "top", "--picture", tmp_path / "a.svg", "--count", 1)
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_extra_models_runs_an_experiment_on_a_model(installs: Path, tmp_path: Path) -> None:
    words = ("run", DEMO, "--fabric", "fluid", "--policy", "ecmp", "--seeds", "1", "--results", tmp_path)
    done = paralet(install(installs, "models"), *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo" / "report.html").is_file()


@pytest.fixture(scope="module")
def models_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as PARALET_PARTS=models installs them: nothing native but the models, and a file with the commit."""
    folder = tmp_path_factory.mktemp("models_alone")
    for package in (path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"):
        if package.name in ("hostlib", "nccl_net_plugin", "testbed"):
            (folder / package.name).mkdir()
            for file in package.iterdir():
                if file.suffix != ".so" and file.name not in ("bin", "lib"):
                    (folder / package.name / file.name).symlink_to(file)
        else:
            (folder / package.name).symlink_to(package)
    (folder / "testbed/commit").unlink(missing_ok=True)
    (folder / "testbed/commit").write_text("0123456789ab")
    return folder


def test_the_models_alone_run_an_experiment(installs: Path, models_alone: Path, tmp_path: Path) -> None:
    words = ("run", ROOT / DEMO, "--fabric", "fluid", "--policy", "ecmp", "--seeds", "1", "--results", tmp_path)
    done = paralet(install(installs, "models"), *words, sources=models_alone)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "demo/summary.json").read_text())["provenance"]["commit"] == "0123456789ab"
    answer = json.loads(paralet(install(installs, "models"), "doctor", "--json", sources=models_alone).stdout)
    assert answer["uses"] == {"plugin": False, "models": True, "service": False, "fabric": False}
    served = paralet(install(installs, "service"), "doctor", "--for", "service", sources=models_alone)
    assert served.returncode == 0, "the path service does not use the engine"


@pytest.mark.parametrize("words", [("stat",), ("top", "--json"), ("bench", "transport")], ids=" ".join)
def test_without_the_engine_a_command_says_so(words: tuple[str, ...], installs: Path, models_alone: Path) -> None:
    done = paralet(install(installs, "models"), *words, sources=models_alone)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr == f"paralet: {WITHOUT_ENGINE}\n"


@pytest.mark.parametrize(
    ("words", "extra"), [(("--fabric", "mininet"), "fabric"), (("--fabric", "fluid", "--watch"), "top")], ids=str
)
def test_an_option_names_the_extra_that_is_missing(
    words: tuple[str, ...], extra: str, installs: Path, tmp_path: Path
) -> None:
    done = paralet(install(installs, "models"), "run", DEMO, *words, "--results", tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(f": run pip install 'paralet[{extra}]'\n")
    assert not list(tmp_path.iterdir())


def test_extra_service_starts_a_path_service(installs: Path, tmp_path: Path) -> None:
    topology = tmp_path / "fabric.yaml"
    packages = install(installs, "service")
    topology.write_text("leaf_spine: {leaves: 2, spines: 2, hosts_per_leaf: 1, host_rate: 10 Mbit/s}\n")
    words = ("path-service", "run", "--topology", topology, "--token-file", tmp_path / "token", "--json")
    with subprocess.Popen(
        [sys.executable, "-S", "-B", "-m", "testbed", *map(str, words), "--listen", "127.0.0.1:0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{packages}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as service:
        assert service.stdout is not None
        try:
            assert json.loads(service.stdout.readline())["event"] == "ready"
            asked = paralet(packages, "path-service", "status", "--token-file", tmp_path / "token")
            assert "0 elephants" in asked.stdout, asked.stderr
        finally:
            service.terminate()
    assert service.returncode == 0
