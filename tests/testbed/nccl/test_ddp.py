# SPDX-License-Identifier: Apache-2.0
"""Training with DDP over one network after the other: a program in place of the training, which needs a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.errors import InputError, TestbedError
from testbed.nccl import ddp
from testbed.nccl.ddp import Training

PROGRAM = """\
import json, os, sys, time
rank = int(os.environ["RANK"])
if sys.argv[2] == "only rank 1 ends" and rank == 0:
    time.sleep(300)
if sys.argv[1] != "none":
    with open(os.environ["NCCL_DEBUG_FILE"], "w") as log:
        log.write(f"Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via NET/{sys.argv[1]}/0\\n")
print("a library says something")
print(json.dumps({
    "seconds": [0.25, 0.5 + rank, 9.0], "alone": [0.125], "losses": [3.0, 2.0], "gradient_bytes": 4,
    "parameters": sys.argv[2] if rank else "same", "torch": "2", "gpu": "H"}))
sys.exit(sys.argv[3] if sys.argv[3] == "no such word" else int(sys.argv[3]))
"""


def trained(tmp_path: Path, network: str = "paralet", parameters: str = "same", status: str = "0") -> Training:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [network, parameters, status]
    return ddp.training(program, words, "tcp", 2, dict(os.environ), None, "lo", tmp_path, timeout_s=100)


def test_the_slowest_rank_and_the_median_step_count(tmp_path: Path) -> None:
    found = trained(tmp_path)
    assert (found.step_s, found.alone_s, found.losses) == (1.5, 0.125, (3.0, 2.0))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"network": "Socket"}, "rank 0 over tcp: NCCL moves data from rank 0 to rank 1 via NET/Socket/0, not via"),
        ({"parameters": "other"}, "the ranks over tcp have come to different parameters"),
        ({"status": "3"}, "rank [01] over tcp ended with status 3: it said nothing; its logs are in "),
        ({"status": "no such word"}, "rank [01] over tcp ended with status 1: no such word; its logs are in "),
    ],
)
def test_a_training_that_proves_nothing_is_an_error(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(TestbedError, match=sentence):
        trained(tmp_path, **options)


def test_the_log_of_an_earlier_training_proves_nothing(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(TestbedError, match="rank 0 over tcp: NCCL's log has no line 'via NET/paralet'"):
        trained(tmp_path, "none")


def test_a_rank_that_fails_ends_the_training_while_others_wait_for_it(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="rank 1 over tcp ended with status 3"):
        trained(tmp_path, parameters="only rank 1 ends", status="3")


def test_words_that_the_training_does_not_know_are_the_callers_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ended with status 2"):
        trained(tmp_path, status="2")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--transports", "tcp:0"], "--transports: 'tcp:0' is none of paralet, Socket, IB, "),
        (["--transports", "Socket:2"], "--transports: 'Socket:2' is none of paralet, Socket, IB, "),
        (["--transports", ""], "--transports: '' is none of paralet, Socket, IB, "),
        (["--transports", "Socket,Socket"], "argument --transports: 'Socket,Socket' names something twice"),
        (["--ranks", "1"], "argument --ranks: '1' is not a number from 2 to 1024"),
        (["--repetitions", "0"], "argument --repetitions: '0' is not a number from 1 to 1024"),
        (["--timeout-s", "nan"], "argument --timeout-s: 'nan' is not a number from 1 to 1024"),
        (["--plugin", "absent.so"], "--plugin: there is no file absent.so"),
    ],
)
def test_a_wrong_request_ends_with_a_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["--out", str(tmp_path), *words]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"python3 -m testbed.nccl.ddp: {sentence}")
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize(("lacks", "sentence"), [("torch", "PyTorch is not installed"), ("gpu", "has no NVIDIA GPU")])
def test_what_a_training_needs_is_looked_for_first(
    lacks: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ddp, "find_spec", lambda _: None if lacks == "torch" else True)
    monkeypatch.setattr("testbed.nccl.devices.choose", lambda _: "cpu" if lacks == "gpu" else "gpu")
    assert status_of(["--transports", "Socket", "--out", str(tmp_path / "out")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def status_of(words: list[str]) -> int:
    try:
        return ddp.main(words)
    except SystemExit as end:  # by argparse
        return int(end.code or 0)


def test_transports_take_turns_in_one_order_and_back() -> None:
    said: list[str] = []

    def once(transport: str) -> Training:
        return Training(transport, 0.5 if transport == "tcp" else 1.0, 0.25, (1.0,), 4_000_000, "2.11", "H100")

    found = ddp.in_turn(["tcp", "Socket"], 3, once, said.append)
    assert [each.transport for each in found] == ["tcp", "Socket", "Socket", "tcp", "tcp", "Socket"]
    assert said[0] == "DDP over tcp: a step takes 500.0 ms, 250.0 ms alone"
    result = ddp.as_json(found, ["tcp", "Socket"], 2, mps=False)
    assert result["ratios"] == {"tcp": 0.5}
    text = ddp.as_text(result)
    assert "2 ranks on H100, torch 2.11, 4 MB of gradients" in text
    assert "| tcp | 500.0 | 250.0 | 0.50 |" in text
