# SPDX-License-Identifier: Apache-2.0
"""Path services in etcd: `sdn.path_service.consensus.store` explains what this does.

Each service has a lease of etcd. Under it is its key in `services/`, and, while it leads, the key `leader`. Who has
created `leader` last leads, so every write compares the revision of its creation: etcd refuses the write of a service
that leads no more. `head` has the generation and the number of the last change, `entries` what these have led to, and
`changes/` the changes by number.
"""

import secrets
import time
from collections.abc import Sequence
from math import ceil
from ssl import SSLContext
from typing import Any

import msgspec
from msgspec import Struct

from sdn.path_service.consensus.etcd import Endpoint, Etcd, UnansweredError, bytes_of, end_of, text_of
from sdn.path_service.consensus.store import ConsensusError, Seen, UnknownError
from sdn.path_service.control.book import Change, ConflictError, Draft, Entry, Kind, State, applied, encode
from sdn.path_service.control.store import MOST_CHANGES, rfc3339

_LEAST_TIMEOUT_S, _MOST_TIMEOUT_S = 0.2, 2.0
_LEAST_LEASE_S = 2  # that etcd grants with the election timeout that it has by default
_TRIES = 3


class _Head(Struct, frozen=True):
    generation: int = 0
    last: int = 0


_Entries = tuple[tuple[Kind, str, Entry], ...]
_head_of = msgspec.json.Decoder(_Head).decode
_entries_of = msgspec.json.Decoder(_Entries).decode
_change_of = msgspec.json.Decoder(Change).decode


class EtcdStore:
    """The data of one fabric in etcd, below a prefix, for the service that calls itself `name`."""

    def __init__(
        self, endpoints: Sequence[Endpoint], tls: SSLContext | None, prefix: str, name: str, lease_s: float
    ) -> None:
        granted_s = max(ceil(lease_s), _LEAST_LEASE_S)
        timeout_s = min(max(_LEAST_TIMEOUT_S, granted_s / (len(endpoints) + 1)), _MOST_TIMEOUT_S)
        self._lease, self._data = (Etcd(endpoints, tls, timeout_s) for _ in range(2))
        self._prefix = prefix.rstrip("/") + "/"
        self._name = name
        self._own = self._key(f"services/{secrets.token_hex(8)}")
        self._asked_s = ceil(lease_s)
        self.lease_s = float(self._asked_s)
        self._id: str | None = None  # of the lease
        self._leads = 0  # the revision of `leader` while this service leads
        self._head, self._head_at = _Head(), 0  # and the revision of this
        self._entries: State = {}

    @property
    def entries(self) -> State:
        return self._entries

    @property
    def last(self) -> int:
        return self._head.last

    # -- the lease -----------------------------------------------------------------------------------------------------

    def look(self) -> Seen:
        for _ in range(_TRIES):
            renewed = self._renew()
            said = self._lease.ask("/v3/kv/txn", {"success": self._looked_for()})
            # A member of etcd that leads no more may still renew leases for a moment. So a renewal counts when the
            # read after it, which a majority has to confirm, was in the same term and by the same member.
            if renewed == _term(said["header"]):
                return self._seen(said)
        raise UnansweredError("etcd elects its leader")

    def _renew(self) -> tuple[str, str]:
        """Renews the lease, or begins one. Returns the member and the term in which that was done."""
        if self._id is not None:
            said = self._lease.ask("/v3/lease/keepalive", {"ID": self._id})["result"]
            if int(said.get("TTL", 0)) > 0:
                return _term(said["header"])
            self._id = None
        said = self._lease.ask("/v3/lease/grant", {"TTL": self._asked_s})
        put = {"key": text_of(self._own), "value": text_of(self._name), "lease": said["ID"]}
        self._lease.ask("/v3/kv/put", put)
        self._id, self.lease_s = said["ID"], float(said["TTL"])
        return _term(said["header"])

    def _looked_for(self) -> list[dict[str, Any]]:
        services = self._key("services/")
        counted = {"key": text_of(services), "range_end": text_of(end_of(services)), "count_only": True}
        return [self._got("leader"), self._got("head"), {"request_range": counted}]

    def _seen(self, said: dict[str, Any]) -> Seen:
        leader, head, services = (answer["response_range"] for answer in said["responses"])
        found = _only(leader)
        is_this = found is not None and found.get("lease") == self._id
        if found is None or not is_this:
            self._leads = 0
        else:
            self._leads = int(found["create_revision"])
        now = _head_of(bytes_of(value["value"])) if (value := _only(head)) is not None else _Head()
        return Seen(
            None if found is None else bytes_of(found["value"]).decode(errors="replace"),
            is_this,
            found is not None and not is_this and self._is_failing(found.get("lease", "0")),
            int(services.get("count", 0)),
            now.generation,
            now.last,
        )

    def _is_failing(self, lease: str) -> bool:
        said = self._lease.ask("/v3/lease/timetolive", {"ID": lease})
        return int(said.get("TTL", 0)) < int(said.get("grantedTTL", 0)) / 2

    def lead(self, above: int) -> int | None:
        if self._id is None:
            return None
        head = self._read_head()
        at = 0 if head is None else int(head["mod_revision"])
        now = _Head() if head is None else _head_of(bytes_of(head["value"]))
        new = _Head(max(now.generation, above) + 1, now.last)
        leader = {"key": text_of(self._key("leader")), "value": text_of(self._name), "lease": self._id}
        said = self._lease.ask(
            "/v3/kv/txn",
            {
                "compare": [self._is_of(0), self._is_head_of(at)],
                "success": [{"request_put": leader}, self._put("head", encode(new)), self._got("entries")],
            },
        )
        if not said.get("succeeded"):
            return None
        self._leads = int(said["header"]["revision"])
        return self._take(said, new)

    def settle(self, above: int) -> int | None:
        head = self._read_head()
        if head is None or not self._leads:
            return None
        now = _head_of(bytes_of(head["value"]))
        new = now if now.generation > above else _Head(above + 1, now.last)
        # This write changes the revision of `head`, so that no write from before can succeed any more.
        said = self._lease.ask(
            "/v3/kv/txn",
            {
                "compare": [self._is_of(self._leads), self._is_head_of(int(head["mod_revision"]))],
                "success": [self._put("head", encode(new)), self._got("entries")],
                "failure": [self._got("leader")],
            },
        )
        if said.get("succeeded"):
            return self._take(said, new)
        leader = _only(said["responses"][0]["response_range"])
        if leader is not None and int(leader["create_revision"]) == self._leads:  # an attempt before was carried out
            raise UnansweredError("etcd has changed since it was read: it is read again")
        return None

    def leave(self) -> None:
        if self._id is not None:
            self._lease.ask("/v3/lease/revoke", {"ID": self._id})
        self._id = None
        self._lease.close()
        self._data.close()

    def _read_head(self) -> Any:
        return _only(self._lease.ask("/v3/kv/range", self._got("head")["request_range"]))

    def _take(self, said: dict[str, Any], head: _Head) -> int:
        """Has what a transaction has read and written."""
        found = _only(said["responses"][-1]["response_range"])
        entries = () if found is None else _entries_of(bytes_of(found["value"]))
        self._head, self._head_at = head, int(said["header"]["revision"])
        self._entries = {(kind, name): entry for kind, name, entry in entries}
        return head.generation

    # -- changes -------------------------------------------------------------------------------------------------------

    def write(self, draft: Draft) -> Change:
        leads = self._leads
        if not leads:
            raise ConsensusError("this path service does not lead: nothing was changed")
        try:
            entries = applied(self._entries, draft.edits)
        except ConflictError as error:
            raise ConsensusError(str(error)) from error
        head = _Head(self._head.generation, self._head.last + 1)
        at = rfc3339(time.time())
        change = Change(head.last, head.generation, at, draft.who, draft.what, draft.edits)
        listed = tuple((kind, name, entry) for (kind, name), entry in entries.items())
        changes = self._key("changes/")
        old = {"key": text_of(changes), "range_end": text_of(self._key(_numbered(head.last - MOST_CHANGES + 1)))}
        body = {
            "compare": [self._is_of(leads), self._is_head_of(self._head_at)],
            "success": [
                self._put("head", encode(head)),
                self._put("entries", encode(listed)),
                self._put(_numbered(head.last), encode(change)),
                *([{"request_delete_range": old}] if head.last > MOST_CHANGES else []),
            ],
            "failure": [self._got("head"), self._got(_numbered(head.last))],
        }
        try:
            said = self._data.ask("/v3/kv/txn", body)
        except UnansweredError as error:
            raise UnknownError(f"change {head.last} may be written or not, as {error}: see `changes` later") from error
        revision = int(said["header"]["revision"])
        if not said.get("succeeded"):
            revision = self._written_before(said, change)
        self._head, self._head_at, self._entries = head, revision, entries
        return change

    def _written_before(self, said: dict[str, Any], change: Change) -> int:
        """The revision of a change that an attempt before has written, whose answer was lost. Raises ConsensusError."""
        head, kept = (_only(answer["response_range"]) for answer in said["responses"])
        if head is not None and kept is not None and bytes_of(kept["value"]) == encode(change):
            return int(head["mod_revision"])
        raise UnknownError("another path service leads, or another program has changed etcd: nothing was changed")

    def changes(self, after: int, most: int) -> list[Change]:
        changes = self._key("changes/")
        asked = {
            "key": text_of(self._key(_numbered(after + 1))),
            "range_end": text_of(end_of(changes)),
            "limit": most,
        }
        said = self._data.ask("/v3/kv/range", asked)
        return [_change_of(bytes_of(found["value"])) for found in said.get("kvs", [])]

    # -- parts of requests ---------------------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _got(self, name: str) -> dict[str, Any]:
        return {"request_range": {"key": text_of(self._key(name))}}

    def _put(self, name: str, value: bytes) -> dict[str, Any]:
        return {"request_put": {"key": text_of(self._key(name)), "value": text_of(value)}}

    def _is_of(self, revision: int) -> dict[str, Any]:
        """`leader` was created in this revision; 0: there is none."""
        key = text_of(self._key("leader"))
        return {"target": "CREATE", "key": key, "result": "EQUAL", "create_revision": str(revision)}

    def _is_head_of(self, revision: int) -> dict[str, Any]:
        return {"target": "MOD", "key": text_of(self._key("head")), "result": "EQUAL", "mod_revision": str(revision)}


def _numbered(number: int) -> str:
    """The key of a change: keys are in the order of numbers."""
    return f"changes/{max(0, number):016d}"


def _only(answer: dict[str, Any]) -> Any:
    """The key and value of an answer about one key; None where there is none."""
    return next(iter(answer.get("kvs", [])), None)


def _term(header: dict[str, Any]) -> tuple[str, str]:
    return header["member_id"], header["raft_term"]
