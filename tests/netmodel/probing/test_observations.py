# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmodel.probing import observations
from netmodel.probing.observations import Observation, ProbeFile, ProbeFileError, from_json, load, save, to_json

HOP = {
    "from": "10.0.0.1",
    "to": "10.0.1.1",
    "protocol": "udp",
    "source_port": 49152,
    "destination_port": 4791,
    "ttl": 3,
    "answer": "hop",
    "router": "10.1.2.3",
    "rtt_s": 0.00021,
    "at_s": 1.5,
}


def written(**changes: Any) -> bytes:
    """A file of one observation, with some of its keys changed."""
    file = {"format": "paralet-probe-1", "host": "h1", "began": "2026-11-26T21:12:00Z", "observations": [HOP | changes]}
    return json.dumps(file).encode()


seen = st.builds(
    Observation,
    source=st.ip_addresses(v=6).map(str),
    destination=st.just("fd00::1"),
    protocol=st.sampled_from(["udp", "tcp"]),
    source_port=st.integers(0, 0xFFFF),
    destination_port=st.integers(0, 0xFFFF),
    ttl=st.integers(1, 255),
    answer=st.just("hop"),
    router=st.ip_addresses(v=6).map(str),
    rtt_s=st.none() | st.floats(0, 10),
    at_s=st.floats(0, 1e6),
).filter(lambda observation: observation.source != "fd00::1")


@given(st.lists(seen, max_size=3))
def test_a_file_has_what_was_written(found: list[Observation]) -> None:
    file = ProbeFile("h1", "2026-11-26T21:12:00Z", tuple(found))
    assert from_json(to_json(file)) == file


def test_the_keys_are_those_of_the_format() -> None:
    file = from_json(written())
    assert json.loads(to_json(file)) == json.loads(written())
    assert file.observations[0].source == "10.0.0.1"


def test_addresses_have_one_spelling() -> None:
    changes = {"from": "FD00:0::1", "to": "fd00::2", "router": "fd00:0:0::3"}
    observation = from_json(written(**changes)).observations[0]
    assert (observation.source, observation.destination, observation.router) == ("fd00::1", "fd00::2", "fd00::3")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"from": "10.0.0"}, "10.0.0"),
        ({"from": "fd00::1"}, "all IPv4 or all IPv6"),
        ({"to": "10.0.0.1"}, "probes itself"),
        ({"router": None}, "needs the address of its router"),
        ({"answer": "none"}, "neither router nor rtt_s"),
        ({"ttl": 0}, "ttl"),
        ({"source_port": 65536}, "source_port"),
        ({"protocol": "icmp"}, "icmp"),
        ({"at_s": -1}, "at_s"),
        ({"rtt_s": True}, "rtt_s"),
    ],
)
def test_a_wrong_observation_is_refused_with_its_place(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        from_json(written(**changes))
    assert "at `$.observations[0]" in str(refused.value)


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b'{"format": "paralet-probe-2"}', b"[" * 100_000])
def test_what_is_no_such_file_is_refused_in_one_sentence(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "probes.json"
    path.write_bytes(text)
    with pytest.raises(ProbeFileError, match=r"probes\.json: no file of observations") as refused:
        load(path)
    assert "\n" not in str(refused.value)


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "probes.json"
    path.write_bytes(written())
    monkeypatch.setattr(observations, "MOST_BYTES", 100)
    with pytest.raises(ProbeFileError, match="at most 100 bytes"):
        load(path)
    monkeypatch.setattr(observations, "MOST_OBSERVATIONS", 0)
    with pytest.raises(ProbeFileError, match="too many"):
        save(path, from_json(written()))
    assert path.read_bytes() == written()


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ProbeFileError, match=r"missing/probes\.json: cannot be read: No such file"):
        load(tmp_path / "missing" / "probes.json")
    with pytest.raises(ProbeFileError, match=r"missing/probes\.json: cannot be written: No such file"):
        save(tmp_path / "missing" / "probes.json", from_json(written()))


def test_a_saved_file_is_read_again(tmp_path: Path) -> None:
    file = from_json(written())
    save(tmp_path / "probes.json", file)
    assert load(tmp_path / "probes.json") == file
    assert [file.name for file in tmp_path.iterdir()] == ["probes.json"]
