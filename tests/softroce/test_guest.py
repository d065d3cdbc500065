# SPDX-License-Identifier: Apache-2.0
"""The guest's command lines, and what is said when something is missing. Nothing is booted here."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from emul.guest.command import GuestOptions, boot_script, guest_argv, job_script
from emul.guest.kernel import GuestError, GuestKernel, GuestTools, cache_dir, find_kernel, find_tools

KERNEL = GuestKernel("6.12.1-amd64", Path("/cache"))
TOOLS = GuestTools(Path("/bin/virtme-run"), Path("/bin/qemu"), Path("/bin/busybox"))


def following(argv: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(argv) if name == option]


def test_the_job_keeps_words_directory_variables_and_status(tmp_path: Path) -> None:
    awkward = "two words; $HOME 'quoted'\nnext line"
    job = (
        "import os, sys; print(os.getcwd()); print(sys.argv[1:]); print(os.environ['X'], file=sys.stderr); sys.exit(5)"
    )
    script = tmp_path / "job"
    script.write_text(
        job_script([sys.executable, "-c", job, awkward], tmp_path, GuestOptions(environment={"X": awkward}))
    )
    done = subprocess.run(["sh", script], capture_output=True, text=True)
    assert done.returncode == 5
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == sorted(f"{tmp_path}\n{[awkward]}\n{awkward}".splitlines())


def test_what_programs_are_started_from_is_cached_and_the_job_comes_last() -> None:
    lines = boot_script(Path("/run/a job/job")).splitlines()
    assert "mount --bind /run/paralet-cached/usr/bin /usr/bin" in lines
    assert lines.index("fi") > lines.index("mount --bind /run/paralet-cached/usr/bin /usr/bin")
    assert lines[-1] == "exec '/run/a job/job'"
    argv = guest_argv(KERNEL, TOOLS, Path("/run/x/boot"), Path("/src"), GuestOptions())
    assert any("path=/,security_model=none,readonly=on" in word for word in argv)


def test_kvm_is_never_used_and_time_is_limited() -> None:
    argv = guest_argv(KERNEL, TOOLS, Path("/run/x/job"), Path("/src"), GuestOptions(time_limit_s=77))
    assert "--disable-kvm" in argv
    assert argv[: argv.index("/bin/virtme-run")] == ["nice", "-n", "10", "timeout", "--kill-after=10", "77"]


def test_only_what_is_said_stays_writable() -> None:
    options = GuestOptions(writable=[Path("/src/results")])
    argv = guest_argv(KERNEL, TOOLS, Path("/run/x/job"), Path("/src"), options)
    assert following(argv, "--rwdir") == ["/src/results"]
    assert following(argv, "--rodir") == ["/run/x"]
    assert "--rw" not in argv
    assert "/src" in following(argv, "--overlay-rwdir")


def test_a_directory_below_an_overlay_gets_none_of_its_own() -> None:
    argv = guest_argv(KERNEL, TOOLS, Path("/run/x/job"), Path("/home/me/src"), GuestOptions())
    assert "/home" in following(argv, "--overlay-rwdir")
    assert "/home/me/src" not in following(argv, "--overlay-rwdir")


def test_a_missing_kernel_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(GuestError, match=rf"not in {tmp_path}; fetch it with `make softroce`"):
        find_kernel(tmp_path)
    (tmp_path / "version").write_text("6.12.1-amd64\n")
    with pytest.raises(GuestError, match="make softroce"):  # a version without its image is no kernel
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


def test_the_cache_follows_the_xdg_rules() -> None:
    assert cache_dir({"HOME": "/home/me"}) == Path("/home/me/.cache/paralet/softroce")
    assert cache_dir({"HOME": "/home/me", "XDG_CACHE_HOME": "/big"}) == Path("/big/paralet/softroce")
