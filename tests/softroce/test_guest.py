# SPDX-License-Identifier: Apache-2.0
"""The guest's command lines, and what is said when something is missing. Nothing is booted here."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from emul.guest.command import GuestOptions, boot_script, guest_argv, job_script
from emul.guest.kernel import GuestError, GuestKernel, GuestTools, cache_dir, find_kernel, find_tools
from emul.guest.runner import run

KERNEL = GuestKernel("6.12.1-amd64", Path("/cache"))
TOOLS = GuestTools(Path("/bin/virtme-run"), Path("/bin/qemu"), Path("/bin/busybox"))


def following(argv: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(argv) if name == option]


def test_the_job_script_keeps_arguments_directory_variables_and_status(tmp_path: Path) -> None:
    awkward = "two words; $HOME 'quoted'\nnext line"
    job = (
        "import os, sys; print(os.getcwd()); print(sys.argv[1:]); print(os.environ['X'], file=sys.stderr); sys.exit(5)"
    )
    script = tmp_path / "job"
    script.write_text(
        job_script(
            [sys.executable, "-c", job, awkward],
            tmp_path,
            tmp_path / "job has started",
            GuestOptions(environment={"X": awkward}),
        )
    )
    done = subprocess.run(["sh", script], capture_output=True, text=True)
    assert done.returncode == 5
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == sorted(f"{tmp_path}\n{[awkward]}\n{awkward}".splitlines())
    assert (tmp_path / "job has started").is_file()


def test_a_job_that_cannot_mark_its_start_does_not_run(tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text(job_script(["echo", "run"], tmp_path, tmp_path / "missing" / "started", GuestOptions()))
    done = subprocess.run(["sh", script], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout == ""


def test_program_directories_are_cached_and_the_job_runs_last() -> None:
    lines = boot_script(Path("/run/a job/job")).splitlines()
    assert "mount --bind /run/paralet-cached/usr/bin /usr/bin" in lines
    assert lines.index("fi") > lines.index("mount --bind /run/paralet-cached/usr/bin /usr/bin")
    assert lines[-1] == "exec '/run/a job/job'"
    argv = guest_argv(KERNEL, TOOLS, Path("/run/x/boot"), Path("/run/y"), Path("/src"), GuestOptions())
    assert any("path=/,security_model=none,readonly=on" in word for word in argv)


def test_kvm_is_never_used_and_time_is_limited() -> None:
    argv = guest_argv(KERNEL, TOOLS, Path("/run/x/job"), Path("/run/y"), Path("/src"), GuestOptions(time_limit_s=77))
    assert "--disable-kvm" in argv
    assert argv[: argv.index("/bin/virtme-run")] == ["nice", "-n", "10", "timeout", "--kill-after=10", "77"]


def test_only_the_given_directories_are_writable() -> None:
    options = GuestOptions(writable=[Path("/src/results")])
    argv = guest_argv(KERNEL, TOOLS, Path("/run/x/job"), Path("/run/y"), Path("/src"), options)
    assert following(argv, "--rwdir") == ["/run/y", "/src/results"]
    assert following(argv, "--rodir") == ["/run/x"]
    assert "--rw" not in argv
    assert "/src" in following(argv, "--overlay-rwdir")


def test_a_directory_below_an_overlay_gets_no_second_overlay() -> None:
    argv = guest_argv(KERNEL, TOOLS, Path("/run/x/job"), Path("/run/y"), Path("/home/me/src"), GuestOptions())
    assert "/home" in following(argv, "--overlay-rwdir")
    assert "/home/me/src" not in following(argv, "--overlay-rwdir")


def test_a_missing_kernel_error_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match=rf"not in {tmp_path}; fetch it with `make softroce`"):
        find_kernel(tmp_path)
    (tmp_path / "version").write_text("6.12.1-amd64\n")
    with pytest.raises(GuestError, match="make softroce"):  # a version without its image is not a kernel
        find_kernel(tmp_path)
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / "vmlinuz-6.12.1-amd64").touch()
    assert find_kernel(tmp_path) == GuestKernel("6.12.1-amd64", tmp_path)


def test_missing_programs_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    for name, package in (
        ("virtme-run", "virtme-ng"),
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
    ):
        with pytest.raises(GuestError, match=f"needs {name} .*{package}.*make softroce"):
            find_tools()
        (tmp_path / name).touch(mode=0o755)
    assert find_tools().qemu == tmp_path / "qemu-system-x86_64"


def ended_with_all_it_started(argv: list[str], *, stdout: int, stderr: int, cwd: str, grace_s: float) -> int:
    """Stands for `emul.sandbox.run`, which needs root."""
    assert grace_s == 0
    with subprocess.Popen(argv, stdout=stdout, stderr=stderr, cwd=cwd, start_new_session=True) as process:
        status = process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return status


Boots = Callable[..., list[str]]


@pytest.fixture
def boots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Boots:
    """Runs `echo ran` in a guest whose first boots are shell code, `job` in it being the guest's script; the answer is
    what came on its output, then its status or its error."""

    def try_boots(*bodies: str, **options: int) -> list[str]:
        count = tmp_path / "count"
        cases = " ".join(f"{number}) {body} ;;" for number, body in enumerate(bodies, 1))
        virtme_run = tmp_path / "virtme-run"
        virtme_run.write_text(
            f'#!/bin/sh\necho boot >> {count}\njob() {{ while [ $# -gt 1 ]; do shift; done; sh -c "$1"; }}\n'
            f'case $(wc -l < {count}) in {cases} *) job "$@" ;; esac\n'
        )
        virtme_run.chmod(0o755)
        monkeypatch.setattr("emul.guest.runner.find_kernel", lambda _cache: KERNEL)
        monkeypatch.setattr("emul.guest.runner.find_tools", lambda: GuestTools(virtme_run, TOOLS.qemu, TOOLS.busybox))
        monkeypatch.setattr("emul.guest.runner.boot_script", lambda job: f"#!/bin/sh\nexec {job}\n")
        monkeypatch.setattr("emul.guest.runner.sandbox.run", ended_with_all_it_started)
        output = io.BytesIO()
        try:
            given = GuestOptions(**options)
            ended = str(run(["echo", "ran"], log=tmp_path / "log", options=given, output=output, cwd=tmp_path))
        except GuestError as error:
            ended = str(error).partition(";")[0]
        return [*output.getvalue().decode().splitlines(), ended]

    return try_boots


@pytest.mark.parametrize("first", ["echo panic >&2; exit 255", "sleep 60", "exit 1"], ids=["panic", "hang", "virtme"])
def test_a_guest_that_does_not_come_up_is_booted_again_with_a_message(
    boots: Boots, first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert boots(first, boot_limit_s=2) == ["ran", "0"]
    assert capsys.readouterr().err.count("the guest did not come up") == 1
    assert "booted again" in (tmp_path / "log").read_text()
    assert (tmp_path / "count").read_text() == "boot\n" * 2


def test_a_guest_that_never_comes_up_is_booted_twice(boots: Boots, tmp_path: Path) -> None:
    assert boots("exit 255", "exit 255", "exit 255") == ["the guest did not come up"]
    assert (tmp_path / "count").read_text() == "boot\n" * 2


@pytest.mark.parametrize(
    ("after", "ended"),
    [
        ("exit 255", "the guest ended before its command did"),
        ("exit 7", "7"),
        ("sleep 60", "the guest did not finish within 3 s"),
    ],
)
def test_a_command_that_was_started_never_runs_again(boots: Boots, after: str, ended: str, tmp_path: Path) -> None:
    assert boots(f'job "$@"; {after}', boot_limit_s=1, time_limit_s=3) == ["ran", ended]
    assert (tmp_path / "count").read_text() == "boot\n"


def test_a_stopped_guest_is_not_booted_again(boots: Boots, tmp_path: Path) -> None:
    assert boots("exit 143") == ["143"]
    assert (tmp_path / "count").read_text() == "boot\n"


def test_the_time_limit_is_for_both_boots(boots: Boots, tmp_path: Path) -> None:
    assert boots("sleep 60", time_limit_s=1) == ["the guest did not come up"]
    assert (tmp_path / "count").read_text() == "boot\n"


def test_the_cache_follows_the_xdg_rules() -> None:
    assert cache_dir({"HOME": "/home/me"}) == Path("/home/me/.cache/paralet/softroce")
    assert cache_dir({"HOME": "/home/me", "XDG_CACHE_HOME": "/big"}) == Path("/big/paralet/softroce")
