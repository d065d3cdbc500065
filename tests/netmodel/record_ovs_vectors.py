# SPDX-License-Identifier: Apache-2.0
"""Records which bucket a real Open vSwitch chooses. Run as root: `python tests/netmodel/record_ovs_vectors.py`.

It starts a separate Open vSwitch in its own namespaces and folders, programs select groups with
`selection_method=hash`, asks `ofproto/trace` about random flows and about flows whose two best buckets tie, and writes
ovs_vectors.json beside this file. Tests compare `OvsHash` with the record, so they need neither root nor Open vSwitch.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from netmodel.flow import FlowFields
from netmodel.hashes import ovs

RECORD = Path(__file__).with_name("ovs_vectors.json")
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
GROUPS: list[tuple[int, list[int]]] = [  # (selection_method_param, bucket weights)
    (0, [1] * 4),
    (0, [1] * 16),
    (1, [1] * 2),
    (0xFFFFFFFF, [1] * 3),
    (0x100000000, [1] * 4),
    (2**64 - 1, [1] * 4),
    (0x910A2DEC89025CC1, [1] * 4),
    (0xBEEB8DA1658EEC67, [1] * 8),
    (0x123456789ABCDEF0, [1] * 32),
    (0, [1, 1, 1, 2]),
    (7, [3, 0, 5, 1, 65535]),
    (99, [2] * 64),
]
FLOWS_PER_GROUP = 32
TCP_FLOWS_PER_GROUP = 8
TIES_PER_GROUP = 4


def main() -> None:
    if "--inside" not in sys.argv:
        unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        os.execvp("unshare", [*unshare, sys.executable, __file__, "--inside"])
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OVS_RUNDIR": folder, "OVS_DBDIR": folder, "OVS_LOGDIR": folder}
        vectors = record(Path(folder), environment)
    lines = ",\n".join(json.dumps(vector) for vector in vectors)
    version = subprocess.run(["ovs-vsctl", "--version"], check=True, capture_output=True, text=True).stdout
    RECORD.write_text(f'{{"made_with": {json.dumps(version.splitlines()[0])}, "vectors": [\n{lines}\n]}}\n')
    print(f"{len(vectors)} vectors in {RECORD}")


def record(folder: Path, environment: dict[str, str]) -> list[dict[str, Any]]:
    def call(*argv: str) -> str:
        return subprocess.run(argv, check=True, env=environment, capture_output=True, text=True).stdout

    call("ovsdb-tool", "create", f"{folder}/conf.db", SCHEMA)
    socket = f"{folder}/db.sock"
    database = subprocess.Popen(["ovsdb-server", f"{folder}/conf.db", f"--remote=punix:{socket}"], env=environment)
    switch = None
    try:
        call("ovs-vsctl", f"--db=unix:{socket}", "--retry", "--no-wait", "init")
        switch = subprocess.Popen(
            ["ovs-vswitchd", f"unix:{socket}", "--enable-dummy", "-vconsole:err"], env=environment
        )
        call(
            *("ovs-vsctl", f"--db=unix:{socket}", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy"),
            "protocols=OpenFlow15",
        )
        target = f"{folder}/ovs-vswitchd.{switch.pid}.ctl"
        vectors: list[dict[str, Any]] = []
        chance, chance6 = random.Random(1), random.Random(6)
        for number, (seed, weights) in enumerate(GROUPS, start=1):
            buckets = "".join(
                f",bucket=bucket_id:{i},weight:{weight},actions=output:{i + 1}" for i, weight in enumerate(weights)
            )
            group = (
                f"group_id={number},type=select,selection_method=hash,selection_method_param={seed},"
                f"fields(ip_src,ip_dst,ipv6_src,ipv6_dst,ip_proto=0xff,tcp_src,tcp_dst,udp_src,udp_dst){buckets}"
            )
            call("ovs-ofctl", "-O", "OpenFlow15", "add-group", f"unix:{folder}/br0.mgmt", group)
            call("ovs-ofctl", "-O", "OpenFlow15", "del-flows", f"unix:{folder}/br0.mgmt")
            call("ovs-ofctl", "-O", "OpenFlow15", "add-flow", f"unix:{folder}/br0.mgmt", f"actions=group:{number}")
            asked = [*flows(chance, seed, weights), *ipv6_flows(chance6, seed, weights)]
            for src, dst, proto, sport, dport in asked:
                ipv6 = ":" in src
                addresses = f"ipv6_src={src},ipv6_dst={dst}" if ipv6 else f"nw_src={src},nw_dst={dst}"
                header = f"{'ipv6' if ipv6 else 'ip'},nw_proto={proto},{addresses}"
                if name := {6: "tcp", 17: "udp"}.get(proto):
                    header = f"{name}{'6' if ipv6 else ''},{addresses},{name}_src={sport},{name}_dst={dport}"
                trace = call("ovs-appctl", "-t", target, "ofproto/trace", "br0", header)
                found = re.search(r"using bucket (\d+)", trace)
                if found is None:
                    raise SystemExit(f"no bucket in the trace of {header}:\n{trace}")
                scores = {int(i): int(score) for i, score in re.findall(r"bucket (\d+): score (\d+)", trace)}
                vectors.append(
                    {"seed": seed, "weights": weights, "src": src, "dst": dst, "proto": proto}
                    | {"sport": sport, "dport": dport, "bucket": int(found[1])}
                    | ({"scores": [scores.get(i) for i in range(len(weights))]} if len(weights) <= 8 else {})
                )
        return vectors
    finally:
        for process in (switch, database):
            if process is not None:
                process.terminate()
                process.wait()


def flows(chance: random.Random, seed: int, weights: list[int]) -> list[tuple[str, str, int, int, int]]:
    """(src, dst, proto, sport, dport) to ask about."""
    chosen = []
    for i in range(FLOWS_PER_GROUP):
        src, dst = (str(IPv4Address(chance.getrandbits(32))) for _ in range(2))
        if i % 2:  # the addresses of a leaf-spine
            src, dst = (f"10.0.{chance.randrange(4)}.{chance.randrange(1, 5)}" for _ in range(2))
        dport = 4791 if i % 4 else chance.choice([0, 65535, 4791])
        chosen.append((src, dst, 17, chance.choice([0, 255, 256, 65535]) if i < 4 else chance.getrandbits(16), dport))
    chosen += [("10.0.0.1", "10.0.1.1", proto, 0, 0) for proto in (1, 6, 0, 132)]
    chosen += [(src, dst, 6, sport, dport) for src, dst, _, sport, dport in chosen[:TCP_FLOWS_PER_GROUP]]
    return chosen + ties("10.1.0.{}", "10.2.0.1", seed, weights)


def ipv6_flows(chance: random.Random, seed: int, weights: list[int]) -> list[tuple[str, str, int, int, int]]:
    chosen = []
    for i in range(FLOWS_PER_GROUP):
        src, dst = (str(IPv6Address(chance.getrandbits(128 if i % 2 else 8) | 0xFD << 120)) for _ in range(2))
        chosen.append((src, dst, 17, chance.getrandbits(16), 4791 if i % 4 else chance.choice([0, 65535])))
    chosen += [("fd00::1", "fd00::2", proto, 0, 0) for proto in (6, 132)]
    chosen += [(src, dst, 6, sport, dport) for src, dst, _, sport, dport in chosen[:TCP_FLOWS_PER_GROUP]]
    return chosen + ties("fd00::1:{:x}", "fd00::2", seed, weights)


def ties(sources: str, dst: str, seed: int, weights: list[int]) -> list[tuple[str, str, int, int, int]]:
    """Flows whose two best buckets have the same score."""
    found: list[tuple[str, str, int, int, int]] = []
    every_port = np.arange(65536, dtype=np.uint16)
    for j in range(1, 256):
        src = sources.format(j)
        fields = FlowFields.over_ports(ip_address(src), ip_address(dst), every_port)
        best_two = np.sort(ovs.scores(fields, seed, weights), axis=0)[-2:]
        found += [(src, dst, 17, int(port), 4791) for port in np.flatnonzero(best_two[0] == best_two[1])[:1]]
        if len(found) >= TIES_PER_GROUP:
            break
    return found


if __name__ == "__main__":
    main()
