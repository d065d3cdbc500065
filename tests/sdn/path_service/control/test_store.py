# SPDX-License-Identifier: Apache-2.0
"""The store: what was written survives, what is damaged or foreign is refused in one sentence, and can be repaired."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sdn.path_service.control import store as stores
from sdn.path_service.control.book import Change, ConflictError, Draft, Edit, Entry, applied, expired
from sdn.path_service.control.store import VERSION, Store, StoreError, repair

DRAIN = Draft("root (uid 0, pid 1)", "drain spine2", (Edit("drain", "spine2", None, Entry()),))
PIN = Draft("me", "pin h1 h5 via spine3", (Edit("pin", "h1 h5", None, Entry(("spine3",), 99.5)),))
ENTRIES = {("drain", "spine2"): Entry(), ("pin", "h1 h5"): Entry(("spine3",), 99.5)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def filled(path: Path) -> None:
    store = Store(path)
    assert [change.number for change in store.write([DRAIN, PIN])] == [1, 2]
    store.close()


def test_entries_changes_and_the_generation_survive(path: Path) -> None:
    filled(path)
    assert path.stat().st_mode & 0o777 == 0o600
    store = Store(path)
    assert (store.generation, store.last, store.entries) == (2, 2, ENTRIES)
    first, second = store.changes()
    assert (first.generation, first.who, first.what, first.edits) == (1, DRAIN.who, DRAIN.what, DRAIN.edits)
    assert first.at.endswith("Z")
    assert store.changes(after=1, most=5) == [second]
    end = Draft("me", "undrain spine2", tuple(edit.inverse for edit in DRAIN.edits))
    assert store.write([end])[0].number == 3
    store.close()
    store = Store(path)
    assert store.entries == {("pin", "h1 h5"): ENTRIES["pin", "h1 h5"]}
    replayed: dict[object, Entry] = {}
    for change in store.changes():
        replayed = applied(replayed, change.edits)  # type: ignore[arg-type,assignment]
    assert replayed == store.entries, "who follows the changes has the same entries"
    store.close()


def test_what_does_not_fit_is_refused_whole(path: Path) -> None:
    store = Store(path)
    with pytest.raises(StoreError, match="the drain of spine2 has changed since"):
        store.write([DRAIN, DRAIN])
    assert (store.entries, store.changes()) == ({}, [])
    with pytest.raises(ConflictError):
        applied({}, [Edit("drain", "spine2", Entry(), None)])
    assert expired(ENTRIES, 99.0) == ()  # type: ignore[arg-type]
    assert [edit.name for edit in expired(ENTRIES, 100.0)] == ["h1 h5"]  # type: ignore[arg-type]
    store.close()


def test_a_service_that_another_has_replaced_writes_nothing_more(path: Path) -> None:
    store = Store(path)
    with pytest.raises(StoreError, match="is the store of a path service that runs"):
        Store(path)
    with sqlite3.connect(path) as other:  # as one on another machine, whose lock this machine does not see
        other.execute("UPDATE service SET generation = 7")
    with pytest.raises(StoreError, match=r"another path service \(generation 7\) has taken over"):
        store.write([DRAIN])
    assert store.entries == {}
    store.close()


def test_only_the_last_changes_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST_CHANGES", 2)
    filled(path)
    store = Store(path)
    store.write([Draft("me", "drain spine9", (Edit("drain", "spine9", None, Entry()),))])
    assert [change.number for change in store.changes()] == [2, 3]
    assert len(store.entries) == 3
    store.close()


def test_a_full_disk_refuses_and_changes_nothing(path: Path) -> None:
    store = Store(path)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, usual[1]))
    try:
        with pytest.raises(StoreError, match=f"^the store {path} cannot be written, so nothing was changed: "):
            store.write([Draft("me", "x" * 100_000, DRAIN.edits)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert store.entries == {}
    assert store.write([DRAIN])[0].number == 1
    store.close()
    store = Store(path)
    assert [change.what for change in store.changes()] == ["drain spine2"]
    store.close()


def test_a_full_file_system_refuses_and_changes_nothing(path: Path) -> None:
    """On a file system of its own, of 200 KB."""
    code = f"""
import pathlib, sqlite3
from tests.sdn.path_service.control.test_store import DRAIN, ENTRIES, PIN, Store, StoreError
path = pathlib.Path({str(path)!r})
store = Store(path)
store.write([DRAIN])
filler = path.with_name("filler").open("wb", buffering=0)
try:
    while True:
        filler.write(bytes(4096))
except OSError:
    pass
refused = 0
while not refused:  # a page may still have room
    try:
        store.write([PIN, type(PIN)("me", "unpin", (PIN.edits[0].inverse,))])
    except StoreError as error:
        assert "cannot be written, so nothing was changed" in str(error), error
        refused += 1
assert list(store.entries) == [("drain", "spine2")], store.entries
path.with_name("filler").unlink()
filler.close()
store.write([PIN])
store.close()
assert Store(path).entries == ENTRIES
print("done")
"""
    script = 'mount -t tmpfs -o size=200k none "$1" && exec "$2" -c "$3"'
    argv = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", path.parent, sys.executable, code]
    done = subprocess.run(argv, capture_output=True, text=True)
    if "unshare failed" in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"no file system of one's own: {done.stderr.strip()}")
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("kept", [0, 1, 100, 4096, 4097, 12_000])
def test_a_truncated_file_is_refused_and_can_be_repaired(path: Path, kept: int) -> None:
    filled(path)
    assert path.stat().st_size > kept
    os.truncate(path, kept)
    with pytest.raises(StoreError, match=rf"^the store {path} is damaged .*`paralet path-service repair ") as raised:
        Store(path)
    assert "\n" not in str(raised.value)
    saved = repair(path)
    assert not saved.is_whole
    assert saved.damaged.stat().st_size == kept
    store = Store(path)
    assert store.generation > 1000, "it is larger than any before"
    assert set(store.entries) <= set(ENTRIES)
    store.close()


def test_any_overwritten_page_is_refused_or_harmless(path: Path) -> None:
    filled(path)
    whole = path.read_bytes()
    for page in range(0, len(whole), 4096):
        path.write_bytes(whole[:page] + b"\xa5" * 4096 + whole[page + 4096 :])
        with pytest.raises(StoreError, match=r"damaged|not a store"):
            Store(path).close()


@pytest.mark.parametrize("text", ["leaf_spine: {}\n", "x" * 5000])
def test_a_foreign_file_is_refused_and_stays(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(StoreError, match="is not a store of a path service: give another --state file"):
        Store(path)
    with pytest.raises(StoreError, match="is not a store of a path service"):
        repair(path)
    assert path.read_text() == text


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (a)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is a database of another program: give another --state file"):
        Store(path)
    with pytest.raises(StoreError, match="is a database of another program"):
        repair(path)
    assert ([path], before) == (list(path.parent.iterdir()), path.read_bytes())
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="it is not a regular file"):
        Store(path)


@pytest.mark.parametrize("lost", [slice(64, 72), slice(60, 72)])
def test_a_store_whose_head_is_lost_can_be_repaired(path: Path, lost: slice) -> None:
    filled(path)
    damaged = bytearray(path.read_bytes())
    damaged[lost] = bytes(lost.stop - lost.start)
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"is damaged \(its head does not .*`paralet path-service repair "):
        Store(path)
    saved = repair(path)
    assert (saved.entries, saved.changes, saved.is_whole) == (2, 2, False)
    store = Store(path)
    assert store.entries == ENTRIES
    store.close()


def test_a_store_of_another_version_is_refused_and_stays(path: Path) -> None:
    filled(path)
    with sqlite3.connect(path) as later:
        later.execute(f"PRAGMA user_version = {VERSION + 1}")
    later.close()
    for refused in (Store, repair):
        with pytest.raises(StoreError, match=f"is of version {VERSION + 1}, and this path service reads version"):
            refused(path)
    assert list(path.parent.iterdir()) == [path]


def test_a_repair_of_a_whole_store_loses_nothing(path: Path) -> None:
    filled(path)
    saved = repair(path)
    assert (saved.entries, saved.changes, saved.is_whole) == (2, 2, True)
    store = Store(path)
    assert (store.entries, store.generation, store.last) == (ENTRIES, 2, 2)
    with pytest.raises(StoreError, match="is the store of a path service that runs"):
        repair(path)
    store.close()
    with pytest.raises(StoreError, match="there is no store"):
        repair(path.with_name("none"))


def test_what_was_written_survives_a_kill_without_the_write_ahead_log(path: Path) -> None:
    code = f"""
import os, pathlib
from tests.sdn.path_service.control.test_store import DRAIN, PIN, Store
Store(pathlib.Path({str(path)!r})).write([DRAIN, PIN])
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    Path(f"{path}-wal").unlink(missing_ok=True)
    Path(f"{path}-shm").unlink(missing_ok=True)
    store = Store(path)
    assert store.entries == ENTRIES
    store.close()


def test_a_store_follows_that_of_another_service(tmp_path: Path) -> None:
    leads, follows = Store(tmp_path / "one", begins=False), Store(tmp_path / "other", begins=False)
    assert (leads.generation, leads.is_alone) == (0, False)
    leads.keep(7, True)
    first, second = leads.write([DRAIN, PIN])
    follows.write([Draft("me", "drain spine3", (Edit("drain", "spine3", None, Entry()),))])
    follows.replace(7, 1, {("drain", "spine2"): Entry()}, [first])
    follows.follow([first, second])
    follows.follow([second])
    assert (follows.entries, follows.changes()) == (leads.entries, leads.changes())
    wrong = Change(3, 7, first.at, "me", "drain spine2", DRAIN.edits)
    with pytest.raises(StoreError, match="change 3 does not follow from those before: the drain of spine2 has"):
        follows.follow([wrong])
    leads.close()
    follows.close()
    leads, follows = Store(tmp_path / "one", begins=False), Store(tmp_path / "other", begins=False)
    assert (leads.generation, leads.is_alone) == (7, True)
    assert (follows.generation, follows.is_alone, follows.entries, follows.last) == (7, False, ENTRIES, 2)
    leads.close()
    leads = Store(tmp_path / "one")
    assert (leads.generation, leads.is_alone) == (8, True)
    leads.close()
    leads = Store(tmp_path / "one", begins=False)
    assert not leads.is_alone, "a service without another one beside it has served since"
    leads.close()
    follows.close()
