# SPDX-License-Identifier: Apache-2.0
"""Messages: the schema, the parser and the documentation agree."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path

import pytest

from sdn.path_service import messages
from sdn.path_service.messages import (
    Announce,
    Answer,
    Assign,
    MessageError,
    Probe,
    Probed,
    Watch,
    Welcome,
    from_host,
    from_service,
    to_line,
)
from tests.docs.markdown import ROOT, blocks

HELLO = b'{"type":"hello","version":1,"token":"t","device":"10.0.0.1","instance":"00c0ffee00c0ffee","lanes":4}'
ANNOUNCE = {"type": "announce", "id": 17, "peer": "10.0.1.2", "bytes": 100}


def line(**changed: object) -> bytes:
    return json.dumps({**ANNOUNCE, **changed}).encode()


def test_the_schema_file_matches_the_code() -> None:
    stored = Path(messages.__file__).with_name("schema.json")
    assert json.loads(stored.read_text()) == messages.schema()


@pytest.mark.parametrize(
    "other",
    [b"", HELLO, b'{"type":"voted","generation":1,"service":"a"}', b'{"type":"release"}', b"\xff", b"[" * 60_000],
)
def test_usual_lines_are_read_at_once_and_others_are_not(other: bytes) -> None:
    lines = [b'{"type":"release","id":1}', line(), b'{"type":"ping","nonce":1}']
    assert messages.usual_from_host(lines) == [messages.from_host(each) for each in lines]
    assert messages.usual_from_host([*lines, other]) is None


def test_the_page_shows_messages_that_parse() -> None:
    shown = [block for block in blocks("jsonl") if block.page == ROOT / "docs" / "path-service.md"]
    kinds = set()
    for block in shown:
        for text in block.text.splitlines():
            kind = json.loads(text)["type"]
            kinds.add(kind)
            ours = kind in {"welcome", "assign", "pong", "error", "watch", "vote", "wait"} or (
                '"ask"' in text and kind == "probe"
            )
            (from_service if ours else from_host)(text.encode())
    parts = {"fromhost", "fromservice", "measuredflow", "answer", "canprobe"}  # a host's `probe` is a `CanProbe`
    assert kinds == {name.lower() for name in messages.schema()["$defs"]} - parts


def test_missing_keys_have_defaults_and_unknown_ones_are_ignored() -> None:
    assert from_host(line(colour="red")) == Announce(17, "10.0.1.2", 100, "", None, 4791)


@pytest.mark.parametrize(
    "wrong",
    [
        line(id=-1),
        line(id=2**63),
        line(id=1.5),
        line(id="17"),
        line(bytes=-1),
        line(peer="10.0.0.1".ljust(40, "0")),
        line(peer=7),
        line(job="x" * 65),
        line(repeat_s=0),
        line(repeat_s=1e999),
        line(peer_port=0),
        line(type="launch"),
        line(type=None),
        b'{"type":"report","id":1,"lane":1,"port":1,"reason":"whim"}',
        b'{"type":"measured","flows":[%b]}' % b",".join([b'{"id":1,"bytes":1,"seconds":1}'] * 1025),
        b'{"type":"hello","version":1,"token":"t","device":"10.0.0.1","instance":"xyz","lanes":8}',
        b'{"type":"hello","version":1,"token":"t","device":"10.0.0.1","instance":"0123456789abcdef\\n","lanes":8}',
        b'{"type":"hello","version":1,"token":"t","device":"10.0.0.1","instance":"0123456789abcdef","lanes":0}',
        b'{"type":"probe"}',
        b'{"type":"probe","rate":0}',
        b'{"type":"probe","rate":-5}',
        b'{"type":"probe","rate":1e999}',
        b'{"type":"probed","ask":-1,"answers":[]}',
        b'{"type":"probed","ask":1}',
        b'{"type":"probed","ask":1,"answers":[[0,"none",null,null]]}',
        b'{"type":"probed","ask":1,"answers":[[65536,"none",null,null]]}',
        b'{"type":"probed","ask":1,"answers":[[49152,"maybe",null,null]]}',
        b'{"type":"probed","ask":1,"answers":[[49152,"hop",null,0.1]]}',
        b'{"type":"probed","ask":1,"answers":[[49152,"hop","",0.1]]}',
        b'{"type":"probed","ask":1,"answers":[[49152,"hop","spine1",0.1]]}',
        b'{"type":"probed","ask":1,"answers":[[49152,"hop","10.0.0.1/24",0.1]]}',
        b'{"type":"probed","ask":1,"answers":[[49152,"hop","010.0.0.1",0.1]]}',
        b'{"type":"probed","ask":1,"answers":[[49152,"hop","10.0.0.1",-1]]}',
        b'{"type":"probed","ask":1,"answers":[[49152]]}',
        b'{"type":"probed","ask":1,"answers":[%b]}' % b",".join([b'[49152,"none"]'] * 65),
        b'{"type":"moved","peer":"10.0.1.2","answers":[%b]}' % b",".join([b'[49152,"none"]'] * 65),
        b'{"type":"moved","peer":"10.0.1.2","peer_port":0,"answers":[]}',
        b'{"type":"ping","more":' + b"[" * 60_000,
        b'{"type":"announce","id":1,"peer":"\xff","bytes":1}',
        b"",
        b"null",
        b"[]",
        b'{"type":"ping"} {"type":"ping"}',
    ],
)
def test_invalid_messages_are_refused_in_one_sentence(wrong: bytes) -> None:
    with pytest.raises(MessageError) as refused:
        from_host(wrong)
    assert 0 < len(str(refused.value)) <= 200
    assert "\n" not in str(refused.value)


def test_addresses_of_routers_are_compared_as_addresses() -> None:
    said = b'{"type":"probed","ask":7,"answers":[[49164,"hop","FD00:0::1",0.0002],[49196,"none",null,null,"more"]]}'
    probed = from_host(said)
    assert isinstance(probed, Probed)
    assert probed.answers == (Answer(49164, "hop", "FD00:0::1", 0.0002), Answer(49196, "none"))
    assert [answer.address for answer in probed.answers] == [ip_address("fd00::1"), None]


def test_probes_are_asked_for_as_agreed() -> None:
    """Hosts that speak version 2 read exactly these lines."""
    sent = [
        Welcome(1, "9f86d081884c7d65"),
        Welcome(2, "9f86d081884c7d65", probe=True),
        Welcome(2, "9f86d081884c7d65", generation=7),
        Probe(7, "10.0.1.2", 3, [49164, 49196], 100.0),
        Probe(8, "10.0.1.2", 3, [49164], None, 4792),
        Probe(9, "10.0.1.2", 3, [49164], None, once=True, until=["172.16.0.1"]),
        Watch("10.0.1.2", 3, 1.0, [(49164, "172.16.0.1")]),
    ]
    assert [to_line(message) for message in sent] == [
        b'{"type":"welcome","version":1,"session":"9f86d081884c7d65"}\n',
        b'{"type":"welcome","version":2,"session":"9f86d081884c7d65","probe":true}\n',
        b'{"type":"welcome","version":2,"session":"9f86d081884c7d65","generation":7}\n',
        b'{"type":"probe","ask":7,"peer":"10.0.1.2","ttl":3,"ports":[49164,49196],"rate":100.0}\n',
        b'{"type":"probe","ask":8,"peer":"10.0.1.2","ttl":3,"ports":[49164],"rate":null,"peer_port":4792}\n',
        b'{"type":"probe","ask":9,"peer":"10.0.1.2","ttl":3,"ports":[49164],"rate":null,"once":true,'
        b'"until":["172.16.0.1"]}\n',
        b'{"type":"watch","peer":"10.0.1.2","ttl":3,"period_s":1.0,"ports":[[49164,"172.16.0.1"]]}\n',
    ]


def test_an_assignment_omits_defaults() -> None:
    sent = json.loads(to_line(Assign("10.0.1.2", [50_000], 5, None)))
    assert sent == {"type": "assign", "peer": "10.0.1.2", "ports": [50_000], "generation": 5, "rate_bps": None}
