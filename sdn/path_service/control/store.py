# SPDX-License-Identifier: Apache-2.0
"""The file in which a path service's state survives: SQLite with a write-ahead log, synchronised at every commit.

It has the entries of `sdn.path_service.control.book`, the last changes of them by number, and the generation: the
number of services that have served from this file. A service that finds a later generation than its own writes nothing
more. A standby that follows the changes by number has the same entries.
"""

import fcntl
import os
import sqlite3
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sdn.path_service.control.book import Change, ConflictError, Draft, Entry, Kind, applied, edits_of, encode, entry_of

MOST_CHANGES = 10_000
"""Changes that are kept; entries are kept for ever."""
VERSION = 1

_APPLICATION = 0x706C7073  # "plps", by which SQLite's file format tells whose a file is
_MAGIC = b"SQLite format 3\0"
_HEAD = struct.Struct(">60xI4xI")  # of SQLite's file format: user_version and application_id
_SUFFIXES = ("", "-wal", "-shm")
_ALONE = "CREATE TABLE IF NOT EXISTS alone (generation INTEGER NOT NULL)"
_TABLES = """
CREATE TABLE service (generation INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE entries (kind TEXT NOT NULL, name TEXT NOT NULL, entry BLOB NOT NULL, PRIMARY KEY (kind, name));
CREATE TABLE changes (number INTEGER PRIMARY KEY, generation INTEGER NOT NULL, at TEXT NOT NULL, who TEXT NOT NULL,
                      what TEXT NOT NULL, edits BLOB NOT NULL);
"""


class StoreError(Exception):
    """The store cannot be used or written: one sentence with the reason and the remedy."""


class Store:
    """The store at `path`, made if there is none.

    Where a service `begins` to serve at once, `generation` is one more than before. Raises StoreError. For one thread
    at a time.
    """

    def __init__(self, path: Path, *, begins: bool = True) -> None:
        self.path = path
        if not path.exists():
            _make(path, {}, 0, 0, [])
        self._last: int
        self._lock = _locked(path)
        try:
            self._db = _opened(path)
        except StoreError:
            os.close(self._lock)
            raise
        try:
            with self._transaction():
                before, self._last = _row(self._db, "SELECT generation, last FROM service")
                self._db.execute(_ALONE)
                self.is_alone: bool = bool(_row(self._db, f"SELECT {before} IN (SELECT generation FROM alone)")[0])
                """Whether the service of this generation led, and no other one could: see `keep`."""
                if begins:
                    self._db.execute("UPDATE service SET generation = generation + 1")
            self.generation: int = before + begins
            self._entries = _entries(self._db)
        except (sqlite3.Error, msgspec.MsgspecError, ValueError) as error:
            self.close()
            raise StoreError(_damaged(path, error)) from error

    def close(self) -> None:
        """Closes the file; all that was written stays."""
        self._db.close()
        os.close(self._lock)

    @property
    def entries(self) -> dict[tuple[Kind, str], Entry]:
        """All entries."""
        return dict(self._entries)

    @property
    def last(self) -> int:
        """The number of the last change; 0 without any."""
        return self._last

    def write(self, drafts: Sequence[Draft]) -> list[Change]:
        """Writes changes together, on the disk when this returns.

        Raises StoreError, with nothing written, when the disk refuses, an entry is not as an edit says, or another
        service has taken over.
        """
        at = rfc3339(time.time())
        entries, changes = self._entries, []
        try:
            for number, draft in enumerate(drafts, self._last + 1):
                entries = applied(entries, draft.edits)
                changes.append(Change(number, self.generation, at, draft.who, draft.what, draft.edits))
            with self._written():
                _insert(self._db, changes)
                last = self._last + len(changes)
                self._db.execute("UPDATE service SET last = ?", (last,))
                self._db.execute("DELETE FROM changes WHERE number <= ?", (last - MOST_CHANGES,))
        except ConflictError as error:
            raise StoreError(str(error)) from error
        self._entries, self._last = entries, self._last + len(changes)
        return changes

    def keep(self, generation: int, alone: bool) -> None:
        """The service leads in this generation. `alone`: no other one can, until this is called again.

        Raises StoreError.
        """
        with self._written():
            self._lead(generation, alone)
        self.generation, self.is_alone = generation, alone

    def replace(
        self, generation: int, last: int, entries: dict[tuple[Kind, str], Entry], changes: Sequence[Change]
    ) -> None:
        """Has the data of the service of another generation instead of its own. Raises StoreError."""
        with self._written():
            self._db.execute("DELETE FROM entries")
            self._db.execute("DELETE FROM changes")
            rows = [(*key, encode(entry)) for key, entry in entries.items()]
            self._db.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
            _insert(self._db, changes, with_entries=False)
            self._db.execute("UPDATE service SET last = ?", (last,))
            self._lead(generation, False)
        self.generation, self.is_alone, self._last, self._entries = generation, False, last, dict(entries)

    def follow(self, changes: Sequence[Change]) -> None:
        """Has the changes of the service that leads, but for those that are here. Raises StoreError."""
        new = [change for change in changes if change.number > self._last]
        entries = self._entries
        try:
            for change in new:
                entries = applied(entries, change.edits)
        except ConflictError as error:
            raise StoreError(f"change {change.number} does not follow from those before: {error}") from error
        if new:
            with self._written():
                _insert(self._db, new)
                self._db.execute("UPDATE service SET last = ?", (new[-1].number,))
                self._db.execute("DELETE FROM changes WHERE number <= ?", (new[-1].number - MOST_CHANGES,))
            self._entries, self._last = entries, new[-1].number

    def changes(self, after: int = 0, most: int = MOST_CHANGES) -> list[Change]:
        """The first `most` changes after this number that are kept. Raises StoreError."""
        try:
            return list(_changes(self._db, after, most))
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise StoreError(_damaged(self.path, error)) from error

    def _lead(self, generation: int, alone: bool) -> None:
        self._db.execute("UPDATE service SET generation = ?", (generation,))
        self._db.execute("DELETE FROM alone")
        if alone:
            self._db.execute("INSERT INTO alone VALUES (?)", (generation,))

    @contextmanager
    def _written(self) -> Iterator[None]:
        """A transaction, unless another service has begun. Raises StoreError where it cannot be written."""
        try:
            with self._transaction():
                (generation,) = _row(self._db, "SELECT generation FROM service")
                if generation != self.generation:
                    raise StoreError(
                        f"another path service (generation {generation}) has taken over {self.path}: ask that one"
                    )
                yield
        except sqlite3.Error as error:
            raise StoreError(f"the store {self.path} cannot be written, so nothing was changed: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite has rolled back by itself, for example when the disk was full
                self._db.execute("ROLLBACK")
            raise


class Repaired(NamedTuple):
    """What `repair` has saved of a damaged store, and where the damaged one is now."""

    entries: int
    changes: int
    is_whole: bool
    """Whether all could be read."""
    damaged: Path


def repair(path: Path) -> Repaired:
    """Makes a new store of what can be read of the one at `path`, which is renamed.

    The generation becomes larger than any that the old one had. Raises StoreError when there is no file, it is of
    another program or version, or it is the store of a service that runs.
    """
    if not path.is_file():
        raise StoreError(f"there is no store {path}")
    lock = _locked(path)
    try:
        return _repaired(path)
    finally:
        os.close(lock)


def _repaired(path: Path) -> Repaired:
    is_whole = _fault_of_head(path) is None
    entries: dict[tuple[Kind, str], Entry] = {}
    changes: list[Change] = []
    generation = last = 0
    db = sqlite3.connect(path, isolation_level=None)
    try:
        try:
            for kind, name, entry in db.execute("SELECT kind, name, entry FROM entries"):
                entries[kind, name] = entry_of(entry)
        except (sqlite3.Error, msgspec.MsgspecError):
            is_whole = False
        try:
            for change in _changes(db, 0, MOST_CHANGES):
                changes.append(change)
        except (sqlite3.Error, msgspec.MsgspecError):
            is_whole = False
        try:
            generation, last = _row(db, "SELECT generation, last FROM service")
        except (sqlite3.Error, ValueError):
            is_whole = False
            # Generations count starts, so none is as large as a time in seconds.
            generation = int(time.time())
            last = max((change.number for change in changes), default=0)
    finally:
        db.close()
    aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)
        _make(fresh, entries, generation, last, changes)
        for suffix in _SUFFIXES:
            with suppress(FileNotFoundError):
                Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
        fresh.rename(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be repaired: {error.strerror}") from error
    return Repaired(len(entries), len(changes), is_whole, aside)


def rfc3339(seconds: float) -> str:
    """A time of the wall clock (Unix time) as RFC 3339 writes it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _make(
    path: Path, entries: dict[tuple[Kind, str], Entry], generation: int, last: int, changes: Sequence[Change]
) -> None:
    """Makes a store, which appears when it is whole. Raises StoreError."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        db = _connected(fresh)
        try:
            db.executescript(_TABLES)
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO service VALUES (?, ?)", (generation, last))
            rows = [(*key, encode(entry)) for key, entry in entries.items()]
            db.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
            _insert(db, changes, with_entries=False)
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        finally:
            db.close()
        fresh.rename(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"the store {path} cannot be made: {error}") from error
    finally:
        for suffix in _SUFFIXES:
            Path(f"{fresh}{suffix}").unlink(missing_ok=True)


def _locked(path: Path) -> int:
    """An open file that locks the store, and has to be closed after it. Raises StoreError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"the store {path} cannot be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise StoreError(f"{path} cannot be the store: it is not a regular file")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise StoreError(f"{path} is the store of a path service that runs") from None
    except StoreError:
        os.close(file)
        raise
    return file


def _fault_of_head(path: Path) -> str | None:
    """What is wrong with the head of a store; None if nothing is.

    Raises StoreError for a file that is no store, and for a store of another version.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD.size)
    if not _MAGIC.startswith(head[: len(_MAGIC)]):
        raise StoreError(f"{path} is not a store of a path service: give another --state file")
    if len(head) < _HEAD.size:
        return "it is too short"
    version, application = _HEAD.unpack(head)
    if application != _APPLICATION:
        if not _has_tables(path):
            raise StoreError(f"{path} is a database of another program: give another --state file")
        return "its head does not say that it is a store"
    if version != VERSION:
        raise StoreError(f"{path} is of version {version}, and this path service reads version {VERSION}")
    return None


def _has_tables(path: Path) -> bool:
    """Whether a database, which stays as it is, has the tables of a store."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        db.execute("SELECT last, kind, name, entry, number, who, what, edits FROM service, entries, changes LIMIT 0")
    except sqlite3.Error:
        return False
    finally:
        db.close()
    return True


def _opened(path: Path) -> sqlite3.Connection:
    """The database of a store whose pages are whole. Raises StoreError for any other file, which stays as it is."""
    if (fault := _fault_of_head(path)) is not None:
        raise StoreError(_damaged(path, fault))
    db = None
    try:
        os.chmod(path, 0o600)
        db = _connected(path)
        (found,) = _row(db, "PRAGMA quick_check(1)")
        if found != "ok":
            raise StoreError(_damaged(path, found))
        return db
    except (OSError, sqlite3.Error) as error:
        if db is not None:
            db.close()
        raise StoreError(_damaged(path, error)) from error
    except BaseException:
        if db is not None:
            db.close()
        raise


def _connected(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        # Each commit goes into the main file at once: then a lost write-ahead log loses nothing.
        db.execute("PRAGMA wal_autocheckpoint = 1")
    except BaseException:
        db.close()
        raise
    return db


def _row(db: sqlite3.Connection, query: str) -> tuple[Any, ...]:
    row = db.execute(query).fetchone()
    if row is None:
        raise ValueError("a row is missing")
    return tuple(row)


def _entries(db: sqlite3.Connection) -> dict[tuple[Kind, str], Entry]:
    rows = db.execute("SELECT kind, name, entry FROM entries ORDER BY kind, name")
    return {(kind, name): entry_of(entry) for kind, name, entry in rows}


def _changes(db: sqlite3.Connection, after: int, most: int) -> Iterator[Change]:
    columns = "number, generation, at, who, what, edits"
    rows = db.execute(f"SELECT {columns} FROM changes WHERE number > ? ORDER BY number LIMIT ?", (after, most))
    for number, generation, at, who, what, edits in rows:
        yield Change(number, generation, at, who, what, edits_of(edits))


def _insert(db: sqlite3.Connection, changes: Sequence[Change], with_entries: bool = True) -> None:
    for change in changes:
        row = change.number, change.generation, change.at, change.who, change.what, encode(change.edits)
        db.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", row)
        for edit in change.edits if with_entries else ():
            if edit.after is None:
                db.execute("DELETE FROM entries WHERE kind = ? AND name = ?", (edit.kind, edit.name))
            else:
                entry = edit.kind, edit.name, encode(edit.after)
                db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", entry)


def _damaged(path: Path, why: object) -> str:
    return f"the store {path} is damaged ({why}): `paralet path-service repair {path}` saves what can be read of it"
