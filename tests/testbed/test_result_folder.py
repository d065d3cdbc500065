# SPDX-License-Identifier: Apache-2.0
"""A result folder belongs to one command at a time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed import result_folder
from testbed.analysis import results
from testbed.cli import main
from testbed.errors import InputError
from testbed.nccl import devices
from testbed.result_folder import sole_writer
from tests.testbed.experiments import write_spec

CLUSTER = Path(__file__).parents[2] / "experiments" / "clusters" / "small.yaml"
PLAN = Path(__file__).parents[2] / "experiments" / "plan" / "gpt_175b.yaml"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_has_one_writer_until_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "demo"
    with sole_writer(folder):
        with (
            pytest.raises(InputError, match=r"another command is writing to .*/demo: .* with --results$"),
            sole_writer(folder),
        ):
            pytest.fail("two writers")
        with sole_writer(tmp_path / "results" / "other"):
            pass
    with sole_writer(folder):
        pass


def test_a_full_disk_is_told_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel names no file when it writes to a full one, such as /dev/full."""

    def write(*_: object) -> None:
        Path("/dev/full").write_text("results")

    monkeypatch.setattr(results, "write_summary", write)
    argv = ["run", str(write_spec(tmp_path)), "--fabric", "fluid", "--seeds", "1", "--results", str(tmp_path)]
    done = CliRunner().invoke(main, argv)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == f"paralet: {tmp_path}/small cannot be used: No space left on device"


def test_a_fork_that_outlives_the_run_does_not_keep_the_folder(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with sole_writer(tmp_path):
        fork = os.fork()
        if not fork:
            os.close(writing)
            os.read(reading, 1)  # until the parent is done
            os._exit(0)
    with sole_writer(tmp_path):
        pass
    os.close(writing)
    os.waitpid(fork, 0)
    os.close(reading)


def test_the_kernel_unlocks_the_folder_of_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time\nfrom testbed.result_folder import sole_writer\n"
        "with sole_writer(pathlib.Path(sys.argv[1])):\n    print(flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        with pytest.raises(InputError, match="another command"), sole_writer(tmp_path):
            pytest.fail("two writers")
        other.kill()
    with sole_writer(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(result_folder, "flock", no_locks)
    with (
        pytest.raises(InputError, match=r"cannot be locked .*; take a folder on another"),
        sole_writer(tmp_path),
    ):
        pytest.fail("not locked")


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        (["run", "SPEC", "--fabric", "fluid"], "small"),
        (["sweep", "SPEC", "--fabric", "fluid"], "small-sweep"),
        (["cluster", CLUSTER], "small-cluster"),
        (["plan", PLAN], "gpt_175b-plan"),
        (["nccl", "--transports", "Socket", "--device", "cpu"], "nccl"),
        (["report", "FOLDER"], "small"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_commands_touch_nothing_in_a_folder_that_another_one_writes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[object], folder: str
) -> None:
    monkeypatch.setattr(devices, "find", lambda *_: None)  # the real NCCL may not be installed
    used = tmp_path / folder
    (used / "logs").mkdir(parents=True)
    for name in ("spec.yaml", "observations.json", "results.json", "summary.json", "chosen.yaml", "logs/a.log"):
        (used / name).write_text("of the other command")
    places = {"SPEC": write_spec(tmp_path), "FOLDER": used}
    words = [str(places.get(word, word)) if isinstance(word, str) else str(word) for word in command]
    if command[0] != "report":
        words += ["--out", str(used)] if command[0] == "nccl" else ["--results", str(tmp_path)]
    with sole_writer(used):
        before = contents(tmp_path)
        done = CliRunner().invoke(main, words)
        assert contents(tmp_path) == before
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.count("\n") == 1
    assert f"another command is writing to {used}" in done.stderr
