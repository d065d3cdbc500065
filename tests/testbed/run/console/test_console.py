# SPDX-License-Identifier: Apache-2.0
"""Every command on a fabric shows or changes what it says, and refuses what it cannot do in one sentence."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from emul import FabricError, LinkFault
from netmodel import PortRef
from testbed.run.console.console import COMMANDS
from tests.testbed.run.console.fake_console_fabric import TOPOLOGY, Session

UPLINK = TOPOLOGY.link_at(PortRef("leaf1", 2))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_nodes_have_addresses_and_a_process(session: Session) -> None:
    status, shown, _ = session.give("nodes")
    assert status == 0
    header, first, *others = (line.split() for line in shown.splitlines())
    assert header == ["name", "role", "addresses", "pid"]
    assert first == ["h1", "host", "10.0.0.1", str(os.getpid())]
    assert [node[:3] for node in others] == [
        ["h2", "host", "10.0.1.1"],
        ["leaf1", "leaf", "-"],
        ["leaf2", "leaf", "-"],
        ["spine1", "spine", "-"],
        ["spine2", "spine", "-"],
    ]
    assert json.loads(session.give("nodes --json")[1])[1]["addresses"] == {"nic0": "10.0.1.1"}


def test_net_has_the_other_end_of_each_port(session: Session) -> None:
    lines = session.give("net")[1].splitlines()
    assert lines[0].split() == ["h1", "1", "leaf1:1"]
    assert lines[2].split(maxsplit=1) == ["leaf1", "1 h1:1, 2 spine1:1, 3 spine2:1"]


def uplink(session: Session) -> list[str]:
    """The row of the link from leaf1 to spine1."""
    (line,) = (line for line in session.give("links")[1].splitlines() if line.startswith("leaf1:2 "))
    return re.split("  +", line)


def test_a_link_that_is_cut_is_down_until_it_is_mended(session: Session) -> None:
    assert "up" in uplink(session)
    assert session.give("link leaf1 spine1 down")[0] == 0
    assert "down" in uplink(session)
    assert session.give("link leaf1:2 up")[0] == 0
    assert "up" in uplink(session)
    assert session.changes == ["cut leaf1:2", "mend leaf1:2"]


def test_a_link_keeps_a_part_of_its_rate(session: Session) -> None:
    for share in ("25 %", "0.25"):
        assert session.give(f"link spine1 leaf1 rate {share}")[0] == 0
        assert session.fabric.parts == {UPLINK: 0.25}
        session.fabric.parts.clear()
    session.give("link leaf1:2 rate 25 %")
    assert "25 % of 20 Mbit/s" in uplink(session)


def test_a_port_has_exactly_the_settings_that_were_given_last(session: Session) -> None:
    assert session.give("link h1:1 loss 5 % delay 2 ms")[0] == 0
    assert session.fabric.faults == {PortRef("h1", 1): LinkFault(loss=0.05, delay_s=0.002)}
    assert "h1:1 loss 5 %, delay 2000 us" in session.give("links")[1]
    assert session.give("links h1:1 mark_above 40 KB")[0] == 0  # what is meant is clear
    assert session.fabric.faults == {PortRef("h1", 1): LinkFault(mark_above_bytes=40_000)}
    assert session.give("link h1:1 clear")[0] == 0
    assert session.fabric.faults == {PortRef("h1", 1): LinkFault()}


def test_two_nodes_stand_for_both_directions(session: Session) -> None:
    session.give("link leaf1 spine1 loss 0.5")
    assert session.fabric.faults == dict.fromkeys((UPLINK.a, UPLINK.b), LinkFault(loss=0.5))


def test_programs_run_on_nodes_which_know_names_of_hosts(session: Session) -> None:
    assert session.give("exec h1 ping -c 1 h2")[0] == 7
    session.give("exec leaf1 true")
    assert session.programs == [["env", "NODE=h1", "ping", "-c", "1", "h2"], ["env", "NODE=leaf1", "true"]]
    assert session.fabric.named == 1


def test_a_capture_passes_the_words_of_tcpdump_on(session: Session) -> None:
    session.give("capture leaf1:2 -c 3 udp port 4791")
    (argv,) = session.programs
    assert argv[:5] == ["env", "NODE=leaf1", "tcpdump", "-i", "leaf1-eth2"]
    assert argv[-5:] == ["-c", "3", "udp", "port", "4791"]


def test_rules_are_those_of_the_switch(session: Session) -> None:
    assert session.give("rules spine2") == (0, "rules of spine2\n", "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ping h1", "'ping' is no command: use one of nodes, net, links, rules, link, capture, py, exec"),
        ("nodes h1", "usage: nodes [--json]"),
        ("rules h1", "usage: rules SWITCH, where SWITCH is one of leaf1, leaf2, spine1, spine2"),
        ("link", "usage: link PORT|NODE NODE"),
        ("links --json h1:1", "usage: links [--json | PORT|NODE NODE CHANGE]"),
        ("link leaf1:9 down", "no link of topology 'leaf-spine-2x2x1' is plugged into port leaf1:9"),
        ("link leaf1:x down", "leaf1:x"),
        ("link leaf1 nobody down", "has no host or switch 'nobody'"),
        ("link leaf1 leaf2 down", "no link joins leaf1 and leaf2"),
        ("link leaf1 spine1 sideways", "usage: link PORT|NODE NODE"),
        ("link leaf1 spine1 rate 0", "'0' is not a part of a rate: write it like '25 %'"),
        ("link leaf1 spine1 rate 200 %", "'200 %' is not a part of a rate"),
        ("link leaf1 spine1 rate much", "'much' is not a part of a rate"),
        ("link leaf1:2 loss 5 potatoes", "loss: '5 potatoes' is not a probability"),
        ("link leaf1:2 reorder 5 %", "reorder needs late_by"),
        ("exec h9 true", "has no host or switch 'h9'"),
        ("exec h1", "usage: exec NODE PROGRAM"),
        ("capture", "usage: capture PORT"),
    ],
)
def test_a_wrong_command_is_refused_in_one_sentence(session: Session, line: str, said: str) -> None:
    status, output, errors = session.give(line)
    assert (status, output) == (2, "")
    assert errors.startswith("paralet: ")
    assert said in errors
    assert errors.count("\n") == 1
    assert (session.fabric.down, session.fabric.parts, session.fabric.faults) == (set(), {}, {})


def test_a_failure_of_the_fabric_has_another_status(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_link: object, _up: bool) -> None:
        raise FabricError("no routes to all hosts")

    monkeypatch.setattr(session.fabric, "set_link", fails)
    status, _, errors = session.give("link leaf1 spine1 down")
    assert status == 1
    assert "no routes to all hosts (logs: " in errors
    assert not session.changes


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        ([], "l", ["leaf1", "leaf2", "link", "links"]),
        (["exec"], "h", ["h1", "h2"]),
        (["links"], "--", ["--json"]),
        (["links", "--json"], "", []),
        (["links"], "h1", ["h1", "h1:1"]),
        (["links", "h1:1"], "lo", ["loss"]),
        (["rules"], "", ["leaf1", "leaf2", "spine1", "spine2"]),
        (["capture"], "leaf1:", ["leaf1:1", "leaf1:2", "leaf1:3"]),
        (["link", "leaf1"], "", ["h1", "spine1", "spine2"]),
        (["link", "leaf1", "spine1"], "", ["clear", "corruption", "delay", "down", "late_by", "loss", "mark_above",
                                           "rate", "reorder", "up"]),
        (["link", "leaf1:2", "loss", "5", "%"], "d", ["delay"]),
        (["h1"], "", []),
    ],
)  # fmt: skip
def test_words_are_completed_by_their_place(
    session: Session, words: list[str], incomplete: str, found: list[str]
) -> None:
    assert session.console.completions(words, incomplete) == found


def test_every_command_says_how_it_is_used() -> None:
    assert all(command.usage.split()[0] == name for name, command in COMMANDS.items())


def test_an_expression_reaches_the_fabric(session: Session) -> None:
    assert session.give("py [h.name for h in topology.hosts]")[:2] == (0, "['h1', 'h2']\n")
    assert session.give("py fabric.set_link(topology.link_at(PortRef('leaf1', 2)), False)")[:2] == (0, "")
    assert session.fabric.down == {UPLINK}
    for wrong in ("py 1 +", "py nobody", "py topology.host('h9')", "py"):
        status, shown, errors = session.give(wrong)
        assert (status, shown) == (2, "")
        assert re.match("paralet: [A-Z][A-Za-z]+Error: ", errors), errors


def test_ctrl_c_ends_an_expression_and_not_the_prompt(session: Session) -> None:
    """The prompt has a handler of its own, which raises nothing while a command runs."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        status, _, errors = session.give("py __import__('signal').raise_signal(2) or [None for _ in iter(int, 1)]")
        assert (status, errors) == (2, "paralet: interrupted\n")
        status, _, errors = session.give("py exit(3)")
        assert (status, errors) == (2, "paralet: SystemExit: 3\n")
    finally:
        signal.signal(signal.SIGINT, before)
