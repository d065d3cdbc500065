# SPDX-License-Identifier: Apache-2.0
"""Records which nexthop a real kernel chooses. As root, Linux 6.11+: `python tests/netmodel/record_linux_vectors.py`.

In a network namespace of its own it sets policy 1 and a seed, makes multipath routes over veth pairs and asks
`ip route get .. iif ..` where random packets would be forwarded to; the answers go to linux_vectors.json beside this
file, with which tests compare `LinuxL4Hash`. (Without `iif` it would be asking about the host's own packets, for which
kernels from 6.15 on prefer the nexthop that owns the source address.)
"""

import json
import os
import platform
import random
import re
import subprocess
import sys
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("linux_vectors.json")
CASES: list[tuple[int, list[int]]] = [  # (seed, nexthop weights)
    (1, [1, 1]),
    (12345, [1] * 3),
    (0x80000000, [1] * 4),
    (0xFFFFFFFF, [1] * 8),
    (0xDEADBEEF, [1, 2, 3, 4]),
    (7, [256, 1, 100]),
]
FLOWS_PER_CASE = 50
PROTOCOLS = {6: "tcp", 17: "udp"}
ENTRY_DEVICE = "d8"  # where the packets come from; the other devices are nexthops


def main() -> None:
    if "--inside" not in sys.argv:
        os.execvp("unshare", ["unshare", "--net", sys.executable, __file__, "--inside"])
    for i in range(max(len(weights) for _, weights in CASES) + 1):
        for command in (
            f"ip link add d{i} type veth peer name p{i}",
            f"ip addr add 10.{i}.0.1/24 dev d{i}",
            f"ip addr add fd00:{i}::1/64 dev d{i} nodad",
            f"ip link set d{i} up",
            f"ip link set p{i} up",
        ):
            subprocess.run(command.split(), check=True)
    for name in ("ipv4/fib_multipath_hash_policy", "ipv4/ip_forward", "ipv6/fib_multipath_hash_policy"):
        sysctl(name, 1)
    sysctl("ipv6/conf/all/forwarding", 1)
    vectors = [vector for version in (4, 6) for seed, weights in CASES for vector in record(version, seed, weights)]
    lines = ",\n".join(json.dumps(vector) for vector in vectors)
    RECORD.write_text(
        f'{{"made_with": "Linux {".".join(platform.release().split(".")[:2])}", "vectors": [\n{lines}\n]}}\n'
    )
    print(f"{len(vectors)} vectors in {RECORD}")


def record(version: int, seed: int, weights: list[int]) -> list[dict[str, Any]]:
    sysctl("ipv4/fib_multipath_hash_seed", seed)
    via = "via fd00:{}::2 " if version == 6 else ""
    nexthops = " ".join(f"nexthop {via.format(i)}dev d{i} weight {weight}" for i, weight in enumerate(weights))
    network = "192.168.0.0/16" if version == 4 else "fd01::/16"
    subprocess.run(f"ip -{version} route replace {network} {nexthops}".split(), check=True)
    chance = random.Random(seed)
    vectors: list[dict[str, Any]] = []
    questions = []
    for _ in range(FLOWS_PER_CASE):
        src, dst = (
            f"10.8.0.{chance.randrange(2, 255)}",
            f"192.168.{chance.randrange(256)}.{chance.randrange(256)}",
        )
        if version == 6:  # often they differ in their last bytes only
            bits = chance.choice([16, 112])
            src, dst = (str(IPv6Address(0xFD01 << 112 | chance.getrandbits(bits))) for _ in range(2))
        proto = chance.choice([6, 17, 17, 17])
        sport, dport = chance.randrange(1, 65536), chance.choice([4791, 1, 65535])
        packet = f"from {src} iif {ENTRY_DEVICE} ipproto {PROTOCOLS[proto]} sport {sport} dport {dport}"
        questions.append(f"route get {dst} {packet}")
        vectors.append({"seed": seed, "weights": weights, "src": src, "dst": dst, "proto": proto})
        vectors[-1] |= {"sport": sport, "dport": dport}
    answers = subprocess.run(
        ["ip", f"-{version}", "-oneline", "-batch", "-"],
        input="\n".join(questions),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.splitlines()
    for vector, answer in zip(vectors, answers, strict=True):
        device = re.search(r" dev d(\d+) ", answer)
        if device is None:
            raise SystemExit(f"no device in the answer {answer!r}")
        vector["nexthop"] = int(device[1])
    return vectors


def sysctl(name: str, value: int) -> None:
    Path("/proc/sys/net", name).write_text(str(value))


if __name__ == "__main__":
    main()
