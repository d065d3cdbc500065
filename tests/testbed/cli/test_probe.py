# SPDX-License-Identifier: Apache-2.0
"""`paralet probe`: what it refuses, and what it makes of files. tests/integration/routed has the rest."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from netmodel import CrcHash, LinuxL4Hash, clos, load_topology
from netmodel.probing.observations import ProbeFile, save
from netmodel.probing.simulated import Fabric
from sdn.measured.router_names import fabric_with
from testbed.cli import main


def probe(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["probe", *map(str, arguments)])


def written(folder: Path, *, affine: bool = False) -> list[str]:
    """The files of four hosts of a fabric, as arguments. A closed port of each has told that it was reached."""
    topology = clos(2, 2, 2, 2, 1, 10**9)
    fabric = Fabric(topology, CrcHash("crc32") if affine else LinuxL4Hash())
    seen = {host.name: [] for host in topology.hosts}  # type: ignore[var-annotated]
    for source, destination in permutations(seen, 2):
        seen[source] += fabric.probes(source, destination, range(0xC000, 0xC030), ttls=range(1, 7))
        seen[source] += fabric.probes(source, destination, [0xC000], [6], destination_port=33434)
    arguments = []
    for host, own in seen.items():
        save(folder / f"{host}.json", ProbeFile(host, "2026-11-26T21:12:00Z", tuple(own)))
        arguments += ["--from-hosts", str(folder / f"{host}.json")]
    return arguments


def test_files_of_hosts_make_a_topology_that_can_be_read_again(tmp_path: Path) -> None:
    found, routers = tmp_path / "found.yaml", tmp_path / "routers.json"
    written_to = "--write-topology", found, "--write-routers", routers
    done = probe(*written(tmp_path), *written_to, "--link-rate", "25Gbps")
    assert done.exit_code == 0, done.output
    assert "found 12 switches and 20 links" in done.output
    assert "10.0.0.1 to 10.0.1.1" in done.output
    topology = load_topology(found)
    assert {link.rate_bps for link in topology.links} == {25 * 10**9}
    names = json.loads(routers.read_text())
    assert fabric_with(topology, names).unmeasurable() is None
    assert len(names) == 2 * 16  # both ends of each link between switches


def test_json_has_every_port_of_every_pair(tmp_path: Path) -> None:
    answer = json.loads(probe(*written(tmp_path), "--json").output)
    assert len(answer["pairs"]) == 12
    assert all(sum(len(path["ports"]) for path in pair["paths"]) == 48 for pair in answer["pairs"])
    assert all(pair["pinnable"] for pair in answer["pairs"])
    assert "switches" in answer["topology"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either hosts"),
        (["10.0.0.1", "--from-hosts", "a.json"], "give either hosts"),
        (["10.0.0.1", "--write-topology", "a.yaml"], "needs --from-hosts"),
        (["--from-hosts", "a.json", "--write-routers", "a.yaml"], "needs --write-topology"),
        (["10.0.0.1", "--ports", "16385"], "neither a number"),
        (["10.0.0.1", "--ports", "60000-50000"], "neither a number"),
        (["10.0.0.1", "--ttl", "0"], "neither top nor all"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # files to write are tried first
    done = probe(*arguments)
    assert done.exit_code == 2
    assert sentence in done.output


@pytest.mark.parametrize(
    ("host", "sentence"),
    [("127.0.0.1", "this host"), ("::1", "this host"), ("no-such-host.invalid", "cannot be probed")],
)
def test_a_host_that_cannot_be_probed_is_refused(host: str, sentence: str) -> None:
    from testbed.errors import InputError

    done = probe(host)
    assert isinstance(done.exception, InputError) or done.exit_code == 2
    assert sentence in (str(done.exception) + done.output)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    done = probe("--from-hosts", file)
    assert "paralet-probe-1" in (str(done.exception) + done.output)
