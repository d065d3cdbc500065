# SPDX-License-Identifier: Apache-2.0
"""`PARALET_*` variables as options of a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hostlib import Device, Faults
from hostlib.parameters import Parameters, names, read_parameters

LOCAL = [("lo", "127.0.0.1", 65536), ("docker0", "172.17.0.1", 1500), ("eth0", "10.0.0.1", 1500)]
RAILS = [*LOCAL, ("eth1", "10.0.1.1", 1500), ("eth1:2", "10.0.9.1", 1500), ("eth10", "10.0.2.1", 1500)]
ROUTED = [
    ("lo", "127.0.0.1", 65536),
    ("lo", "10.8.0.1", 65536),
    ("eth0", "169.254.7.7", 1500),
    ("eth0", "fd00::5", 1500),
]
"""A host with a routed address on its loopback interface."""


def test_the_variables_are_those_of_the_plugin() -> None:
    table = Path(__file__).resolve().parents[2] / "nccl_net_plugin" / "lib" / "parameters.json"
    assert set(names()) == {row["name"] for row in json.loads(table.read_text())}


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PARALET_LANES", " 16 ", "lanes", 16),
        ("PARALET_LANES_PER", "host", "lanes_per", "host"),
        ("PARALET_POLICY", "adaptive", "policy", "adaptive"),
        ("PARALET_LINE_RATE", "100 Gbit/s", "line_rate_bps", 1e11),
        ("PARALET_LINE_RATE", "250000kbit/s", "line_rate_bps", 2.5e8),
        ("PARALET_FLOWLET_BYTES", "1.5MiB", "flowlet_bytes", 3 * 2**19),
        ("PARALET_MICE_BYTES", "0", "mice_bytes", 0),
        ("PARALET_EAGER_BYTES", "8KiB", "eager_bytes", 8192),
        ("PARALET_RETRY_TIME", "1.5s", "retry_time_s", 1.5),
        ("PARALET_BUSY_POLL", "0", "busy_poll_s", 0.0),
        ("PARALET_MIN_TIMEOUT", "67ms", "min_timeout_s", 0.067),
        (
            "PARALET_PORTS",
            "10.0.0.2=50000,50001; 10.0.0.3=50010",
            "ports",
            {"10.0.0.2": [50000, 50001], "10.0.0.3": [50010]},
        ),
        ("PARALET_FAULTS", "drop=0.01,seed=7", "faults", Faults(drop=0.01, seed=7)),
    ],
)
def test_a_value_in_its_unit(variable: str, text: str, name: str, value: object) -> None:
    needed = {"PARALET_POLICY": "pinned"} if variable == "PARALET_PORTS" else {}
    options = read_parameters({variable: text, "PARALET_BACKEND": "soft", **needed}).options
    assert options.pop("backend") == "soft"
    assert {key: options[key] for key in options if key != "policy" or variable == "PARALET_POLICY"} == {
        name: pytest.approx(value) if isinstance(value, float) else value
    }


def test_an_automatic_back_end_is_chosen_for_the_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hostlib.parameters")
    for variables in ({}, {"PARALET_BACKEND": "auto"}):
        automatic = read_parameters({"PARALET_LANES": "2", **variables})
        assert automatic.options == {"lanes": 2}
        # Loopback has no RoCE port, on any machine.
        assert automatic.device_options("127.0.0.1") == {"lanes": 2, "backend": "tcp"}
        (sentence,) = caplog.messages
        assert sentence.startswith("PARALET_BACKEND=auto takes tcp: no interface has an active RoCE port, ")
        caplog.clear()
    named = read_parameters({"PARALET_BACKEND": "soft"})
    assert named.device_options("127.0.0.1") == {"backend": "soft"}
    assert caplog.messages == []


def test_a_device_chooses_its_back_end_as_the_plugin_does() -> None:
    with Device("127.0.0.1+127.0.0.2", backend="auto") as device:
        assert device.backend == "tcp"


def test_empty_variables_and_others_do_not_count() -> None:
    assert read_parameters({"PARALET_LANES": "", "HOME": "/root", "PARALET_RAILS": "order"}) == Parameters()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PARALET_LANES", "0"),
        ("PARALET_LANES", "eight"),
        ("PARALET_LANES", "1.5"),
        ("PARALET_POLICY", "fast"),
        ("PARALET_LINE_RATE", "10 Gb"),
        ("PARALET_RETRY_TIME", "10"),
        ("PARALET_RETRY_TIME", "nan"),
        ("PARALET_FLOWLET_BYTES", "0.3"),
        ("PARALET_PORTS", "10.0.0.2"),
        ("PARALET_PORTS", "10.0.0.2=50000;10.0.0.2=50001"),
        ("PARALET_SEGMENTS", "fd00::2"),
        ("PARALET_SEGMENTS", "fd00::2=fd03::1;fd00::2=fd03::2"),
        ("PARALET_SEGMENTS", "fd00::2=10.0.0.1"),
        ("PARALET_FAULTS", "drop=2"),
        ("PARALET_FAULTS", "lost=0.1"),
        ("PARALET_ADDRESSES", "10.0.0"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(variable: str, text: str) -> None:
    with pytest.raises(ValueError, match=rf"{variable}='{text}' is not allowed: ."):
        read_parameters({variable: text})


def test_options_that_exclude_each_other_are_named_by_their_variables() -> None:
    with pytest.raises(ValueError, match=r"^PARALET_POLICY='pinned' needs PARALET_PORTS"):
        read_parameters({"PARALET_POLICY": "pinned"})


def test_bytes_that_are_no_text_are_shown_as_far_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "paralet.conf"
    file.write_bytes(b"PARALET_LANES=\xff\n")
    with pytest.raises(
        ValueError, match=":1: PARALET_LANES='\N{REPLACEMENT CHARACTER}' is not allowed: it must be 1 to"
    ):
        read_parameters({"PARALET_CONFIG": str(file)})
    with pytest.raises(ValueError, match=r"^PARALET_LANES='\?' is not allowed"):
        read_parameters({"PARALET_LANES": "\udcff", "OTHER": "\udcff"})


def test_a_file_holds_for_what_the_environment_does_not_set(tmp_path: Path) -> None:
    file = tmp_path / "paralet.conf"
    file.write_text("# both rails\nPARALET_IFNAME = eth0,eth1\nPARALET_LANES = 16 # m\nPARALET_POLICY = adaptive\n")
    found = read_parameters({"PARALET_CONFIG": str(file), "PARALET_LANES": "4"})
    assert found == Parameters({"lanes": 4, "policy": "adaptive"}, interfaces="eth0,eth1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PARALET_LANES 4", ":1: 'PARALET_LANES 4' is not NAME=value"),
        ("\nPARALET_LINES=4", ":2: PARALET_LINES is not a parameter"),
        ("PARALET_LANES=4\nPARALET_LANES=5", ":2: .*PARALET_LANES is set twice|PARALET_LANES is set twice"),
        ("PARALET_LANES=0", ":1: PARALET_LANES='0' is not allowed"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "paralet.conf"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_parameters({"PARALET_CONFIG": str(file)})


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="/none of these cannot be read"):
        read_parameters({"PARALET_CONFIG": "/none of these"})


@pytest.mark.parametrize("name", ["PARALET_CONTROLLER", "PARALET_CONTROLLER_TOKEN_FILE"])
def test_a_former_name_is_refused(tmp_path: Path, name: str) -> None:
    said = f"{name} is now named {name.replace('CONTROLLER', 'PATH_SERVICE')}: set that instead"
    with pytest.raises(ValueError, match=f"^{said}$"):
        read_parameters({name: "x"})
    assert read_parameters({name: ""}) == Parameters()
    file = tmp_path / "paralet.conf"
    file.write_text(f"\n{name} = x\n")
    with pytest.raises(ValueError, match=f"paralet.conf:2: {said}$"):
        read_parameters({"PARALET_CONFIG": str(file)})


def test_a_misspelled_name_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="PARALET_LANE is not a parameter and is ignored: did you mean PARALET_LANES"):
        read_parameters({"PARALET_LANE": "4"})


@pytest.mark.parametrize(
    ("variables", "local", "expected"),
    [
        ({}, LOCAL, ["10.0.0.1"]),
        ({}, LOCAL[:2], ["172.17.0.1"]),
        ({}, LOCAL[:1], ["127.0.0.1"]),
        ({"PARALET_IFNAME": "eth1"}, RAILS, ["10.0.1.1", "10.0.2.1"]),
        ({"PARALET_IFNAME": "=eth1"}, RAILS, ["10.0.1.1"]),
        ({"PARALET_IFNAME": "^eth1,lo"}, RAILS, ["172.17.0.1", "10.0.0.1"]),
        ({"PARALET_ADDRESSES": "10.0.1.1, 10.0.0.1"}, RAILS, ["10.0.1.1", "10.0.0.1"]),
        ({"PARALET_ADDRESSES": "127.0.0.7"}, LOCAL, ["127.0.0.7"]),
        ({"PARALET_IFNAME": "lo"}, ROUTED, ["10.8.0.1"]),
        ({"PARALET_IFNAME": "eth0"}, ROUTED, ["fd00::5"]),
        ({"PARALET_IFNAME": "lo,eth0"}, ROUTED, ["10.8.0.1", "169.254.7.7"]),
    ],
)
def test_candidates(variables: dict[str, str], local: list[tuple[str, str, int]], expected: list[str]) -> None:
    assert read_parameters(variables).candidates(local) == expected


@pytest.mark.parametrize("variables", [{"PARALET_IFNAME": "ib"}, {"PARALET_ADDRESSES": "10.9.9.9"}])
def test_a_choice_that_fits_nothing_is_an_error(variables: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(variables))):
        read_parameters(variables).candidates(LOCAL)


def test_interfaces_and_addresses_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        read_parameters({"PARALET_IFNAME": "lo", "PARALET_ADDRESSES": "127.0.0.1"})


@pytest.mark.parametrize(("family", "expected"), [(4, ["10.0.0.5"]), (6, ["fd00::5"]), (None, ["10.0.0.5"])])
def test_an_interface_with_both_families_has_that_of_the_way_to_the_peer(
    family: int | None, expected: list[str]
) -> None:
    local = [("eth0", "10.0.0.5", 1500), ("eth0", "10.0.0.6", 1500), ("eth0", "fd00::5", 1500)]
    assert Parameters(interfaces="eth0").candidates(local, family) == expected
    assert Parameters().candidates(local, family) == expected
    assert Parameters().candidates(local[:1], family) == ["10.0.0.5"]


def test_the_family_of_the_way_to_the_peer_decides(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "hostlib.parameters"):
        assert Parameters().address("::1") == "::1"
        assert Parameters().address("127.0.0.1") == "127.0.0.1"
    assert caplog.messages == [
        "address ::1: it is on the way to ::1",
        "address 127.0.0.1: it is on the way to 127.0.0.1",
    ]


def test_address_of_a_process() -> None:
    assert Parameters().address("127.0.0.1") == "127.0.0.1"
    both = Parameters(addresses=("127.0.0.1", "127.0.0.2"))
    assert [both.address("127.0.0.9", index) for index in range(3)] == ["127.0.0.1", "127.0.0.2", "127.0.0.1"]


def test_options_open_a_device() -> None:
    found = read_parameters({"PARALET_ADDRESSES": "127.0.0.1", "PARALET_LANES": "3", "PARALET_FAULTS": "dead=0.5"})
    with Device(found.address(), **found.options) as device:
        assert device.lanes == 3
