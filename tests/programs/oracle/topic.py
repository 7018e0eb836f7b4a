"""The model of a SOW topic: the outcome of each input record (merge.md, "Commands", "Metadata" and "Bad input")."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tests.programs.oracle.formats import Format
from tests.programs.oracle.keys import Key, partition_of
from tests.programs.oracle.rules import Group, NullPolicy, Taken, grouped, merged, ruled
from tests.programs.oracle.steps import Steps
from tests.programs.oracle.values import (
    MISSING,
    Path,
    Rejected,
    applied,
    difference,
    is_object,
    path_of,
    with_value,
    without,
)

Object = dict[str, Any]

TRAVELLING = frozenset({"client", "sequence", "no_conflate"})
OURS = frozenset(
    {
        "command", "allow-merge", "allow_merge", "version", "kind", "delta_base", "removed", "empty", "remove",
        "expect_version", "expiration", "expires_at", "correlation_id", "sow_key", "command_id", "ack_type", "source",
        "fields", "group_stamps", "conflated", "first_timestamp", "replay_of", "dlq_reason", "dlq_detail", "filter",
    }
)  # fmt: skip
"""The product's own headers that are not passed on (merge.md, "Metadata")."""


@dataclass(frozen=True)
class Settings:
    """The settings of the topic that the model supports."""

    format: Format
    key: Key
    nulls: NullPolicy = "ignore"
    depth: int | None = None
    default_command: str = "delta_publish"
    rules: dict[Path, str] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    ttl_ms: int = 0
    steps: Steps = field(default_factory=Steps)
    max_bytes: int = 1_048_576
    says_source: bool = False
    partition: int = 0
    """The number of the partition that is modelled."""
    partitions: int = 1
    foreign: Literal["move", "reject", "accept"] = "move"
    """The treatment of a new key that belongs to another partition."""


class Input(NamedTuple):
    """A record of the input topic."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    offset: int
    timestamp_ms: int


@dataclass
class Live:
    """A live record."""

    record: Object
    version: int
    expires_at_ms: int = 0
    expiration: str | None = None
    """Its own time to live in seconds; None: the topic's."""
    life: list[Taken] = field(default_factory=list)
    """The updates since it began, where the topic has sequence groups."""


class Update(NamedTuple):
    """One update of a record, with its records on both output topics."""

    key: bytes
    kind: Literal["insert", "update", "delete", "expire"]
    version: int
    record: Object | None
    """The full record; None if it is deleted."""
    delta: Object
    """Key fields, and the changed fields with their new values."""
    removed: frozenset[Path]
    is_empty: bool
    sow_headers: dict[str, str]
    delta_headers: dict[str, str]
    offset: int = -1
    """Of the input record that wrote it; -1 for an expiry and a delete."""


class Numbers:
    """The numbers of a client: those that were taken or refused, and the pairs of refused ones with none between."""

    def __init__(self) -> None:
        self.highest = -1
        """The highest number that was taken."""
        self.passed = -1
        """The highest number that was forwarded since one was refused."""
        self.taken: set[int] = set()
        self.refused: set[int] = set()
        self.pairs: list[tuple[int, int]] = []

    def is_taken(self, number: int) -> bool:
        """True for a number that is not above the highest one taken, unless it was refused (merge.md, Sequence)."""
        return number <= self.highest and not self.is_refused(number)

    def is_refused(self, number: int) -> bool:
        """True for a number that was refused, or lies between two of them, and was not taken since."""
        if number in self.refused:
            return True
        return number not in self.taken and any(low < number < high for low, high in self.pairs)

    def take(self, number: int) -> None:
        """A command with this number was taken."""
        self.highest = max(number, self.highest)
        self.taken.add(number)
        self.refused.discard(number)

    def refuse(self, number: int) -> None:
        """A command with this number was refused, perhaps because it repeats one that was taken."""
        if number <= self.highest or number in self.refused:
            return
        below = max((other for other in self.refused if other < number), default=-1)
        if below > max(self.highest, self.passed):
            self.pairs.append((below, number))
        self.refused.add(number)

    def pass_on(self, number: int) -> bool:
        """A command with this number is forwarded; True if it was refused before."""
        was_refused = self.is_refused(number)
        self.refused.discard(number)
        if was_refused:
            self.taken.add(number)
        self.passed = max(number, self.passed)
        return was_refused


class SowTopic:
    """One partition of a SOW topic."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.live: dict[bytes, Live] = {}
        self.marks: dict[tuple[str, str], Numbers] = {}
        """The numbers used, by partition where a record without a key came in, and by client."""
        self.last_versions: dict[bytes, int] = {}
        """The last version of the former lives of each key."""
        self.updates: list[Update] = []
        """Updates since the last `commit`."""
        self.rejections: list[tuple[int, str]] = []
        """Input offset and reason of the records that were rejected since the last `commit`."""
        self.conflicts: list[tuple[int, int]] = []
        """Input offset of the commands that expected another version, and the version there was (queues.md, rule 8)."""
        self.rekeyed: list[Input] = []
        """Records that were forwarded: sent to the input again, under their own keys."""
        self._committed = copy.deepcopy((self.live, self.marks, self.last_versions))

    def commit(self) -> None:
        """The outputs of the transaction are committed, and the state with them."""
        self.updates, self.rejections, self.rekeyed, self.conflicts = [], [], [], []
        self._committed = copy.deepcopy((self.live, self.marks, self.last_versions))

    def roll_back(self) -> None:
        """The transaction is aborted; its input comes again."""
        self.updates, self.rejections, self.rekeyed, self.conflicts = [], [], [], []
        self.live, self.marks, self.last_versions = copy.deepcopy(self._committed)

    def expire(self, now_ms: int) -> None:
        """End the records whose time to live has passed, in the order of their due times."""
        due = [(live.expires_at_ms, key) for key, live in self.live.items() if 0 < live.expires_at_ms <= now_ms]
        for _, key in sorted(due):
            self._end(key, "expire", {})

    def take(self, record: Input, now_ms: int) -> None:
        """Merge an input record, or recognise it as a duplicate, or reject it."""
        try:
            self._take(record, now_ms)
        except Rejected as rejection:
            self.rejections.append((record.offset, rejection.reason))
            self._refuse(record)

    def _take(self, record: Input, now_ms: int) -> None:
        headers = record.headers
        if record.value is not None and len(record.value) > self.settings.max_bytes:
            raise Rejected("too_large")
        command = self._command(headers)
        if record.key is None:
            self._rekey(record, command)
            return
        mark = self._mark(headers)
        sequence = int(headers.get("sequence", -1))
        is_mended = headers.get("source", "").endswith("+")
        if sequence >= 0 and self.marks.setdefault(mark, Numbers()).is_taken(sequence) and not is_mended:
            return
        if record.key not in self.live and (own_key := self._elsewhere(record.key)) is not None:
            self._forward(record, own_key)
            return
        live = self.live.get(record.key)
        if live is not None and 0 < live.expires_at_ms <= min(record.timestamp_ms, now_ms):
            self._end(record.key, "expire", {})
        if not self._is_expected(record):
            return
        if record.value is None or command == "sow_delete":
            if json.loads(headers.get("remove", "[]")):
                raise Rejected("bad_header")
            if record.key in self.live:
                self._end(record.key, "delete", self._metadata(record))
        else:
            self._merge(record, command, now_ms)
        if sequence >= 0:
            self.marks[mark].take(sequence)

    def _is_expected(self, record: Input) -> bool:
        """True if the record has the version that a conditional command expects; 0 is no record."""
        assert record.key is not None
        live = self.live.get(record.key)
        present = 0 if live is None else live.version
        if int(record.headers.get("expect_version", present)) == present:
            return True
        self.conflicts.append((record.offset, present))
        self._refuse(record)
        return False

    def _refuse(self, record: Input) -> None:
        """Note that the number of a command was refused: it may be used again."""
        sequence = int(record.headers.get("sequence", -1))
        if sequence >= 0:
            self.marks.setdefault(self._mark(record.headers), Numbers()).refuse(sequence)

    def _command(self, headers: dict[str, str]) -> str:
        flag = headers.get("allow-merge", headers.get("allow_merge"))
        by_flag = {None: None, "true": "delta_publish", "false": "publish"}[flag]
        return headers.get("command") or by_flag or self.settings.default_command

    @staticmethod
    def _mark(headers: dict[str, str]) -> tuple[str, str]:
        """The identity by which repeats are counted: the client, and the partition that a rekeyed record came in."""
        return headers.get("source", "").rstrip("+"), headers.get("client", "")

    def _rekey(self, record: Input, command: str) -> None:
        """A record without a Kafka key is sent again, keyed by its header or its body (merge.md, "Bad input")."""
        text = None if self.settings.key.paths else record.headers.get("sow_key")
        if self.settings.key.paths and record.value is not None:
            body = self._body(record, command)
            text = self.settings.key.text(body) if is_object(body) else None
        if text is None:
            raise Rejected("missing_key")
        self._forward(record, text.encode())

    def _elsewhere(self, key: bytes) -> bytes | None:
        """The key under which a record is forwarded that is in the wrong partition; None if it is in the right one.

        A key with another spelling is treated like one in a wrong partition, and cannot stay as it is.
        """
        own_key = self.settings.key.canonical(key)
        if own_key is None:
            return None
        is_foreign = partition_of(key, self.settings.partitions) != self.settings.partition
        if own_key == key and (not is_foreign or self.settings.foreign == "accept"):
            return None
        if self.settings.foreign != "move":
            raise Rejected("wrong_partition" if own_key == key else "key_mismatch")
        return own_key

    def returning(self) -> list[Input]:
        """The records that were forwarded to this very partition."""
        settings = self.settings
        return [r for r in self.rekeyed if partition_of(r.key or b"", settings.partitions) == settings.partition]

    def _forward(self, record: Input, key: bytes) -> None:
        """Send a record to the input again, under its own key (merge.md, "Keys of several fields")."""
        headers = dict(record.headers)
        if "sequence" in headers:
            was_refused = self.marks.setdefault(self._mark(headers), Numbers()).pass_on(int(headers["sequence"]))
            headers["source"] = "here+" if was_refused else "here"
        self.rekeyed.append(record._replace(key=key, headers=headers))

    def _body(self, record: Input, command: str) -> Any:
        """The message, after preprocessing."""
        settings = self.settings
        assert record.value is not None
        is_delta = command == "delta_publish"
        body = settings.format.decode_command(record.value, record.headers, is_delta=is_delta)
        return settings.steps.preprocessed(body) if is_object(body) else body

    def _merge(self, record: Input, command: str, now_ms: int) -> None:
        """The steps of an update: preprocess, key, enrich, merge, diff."""
        settings, key, headers = self.settings, record.key, record.headers
        assert key is not None
        is_delta = command == "delta_publish"
        nulls_missing = is_delta and settings.nulls == "ignore"
        body = self._body(record, command)
        if not is_object(body):
            raise Rejected("not_an_object")
        settings.key.check(key, body, nulls_missing=nulls_missing)
        live = self.live.get(key)
        old = None if live is None else live.record
        body = settings.steps.enriched(body, old)
        if is_delta:
            new = self._merged(old, body)
        else:
            body = settings.key.completed(key, old, body)
            new = body
        new, paths = self._removed(new, headers)
        life = [*(live.life if live is not None else ()), Taken(is_delta, body, paths)] if settings.groups else []
        new = self._with_groups(new, life)
        new = settings.format.stored(settings.format.complete(new))
        if len(settings.format.write(new)) > settings.max_bytes:
            raise Rejected("too_large")
        version = self._first_version(key, record.offset) if live is None else live.version + 1
        expiration = headers.get("expiration", live.expiration if live is not None and is_delta else None)
        ttl_ms = settings.ttl_ms if expiration is None else round(float(expiration) * 1000)
        expiration = None if ttl_ms == settings.ttl_ms else expiration
        expires_at_ms = now_ms + ttl_ms if ttl_ms else 0
        self.live[key] = Live(new, version, expires_at_ms, expiration, life)
        more = self._metadata(record)
        sow = dict(more)
        if expires_at_ms:
            sow["expires_at"] = str(expires_at_ms)
        if expiration is not None:
            sow["expiration"] = expiration
        self._note_update(key, "insert" if live is None else "update", version, old, new, sow, more, record.offset)

    def _first_version(self, key: bytes, offset: int) -> int:
        """The first version of a life: an odd number of its own for each input offset (merge.md, "Metadata")."""
        version = 2 * offset + 1
        assert version > self.last_versions.get(key, 0), f"{key!r}: version {version} was there in an earlier life"
        return version

    def _merged(self, old: Object | None, delta: Object) -> Object:
        settings = self.settings
        nulls_missing = settings.nulls == "ignore"
        if old is not None:
            settings.key.check_place(old, delta, nulls_missing=nulls_missing)
        for group in settings.groups:
            for path in group.guarded:
                delta = without(delta, path)
        delta = ruled(settings.rules, old, delta, has_kinds=settings.format.has_kinds)
        if old is None:
            return merged({}, delta, settings.nulls, settings.depth)
        return settings.key.kept(old, merged(old, delta, settings.nulls, settings.depth))

    def _with_groups(self, new: Object, life: list[Taken]) -> Object:
        """The merged record with the fields of sequence groups."""
        settings = self.settings
        for group in settings.groups:
            values = grouped(group, life, settings.rules, settings.nulls, has_kinds=settings.format.has_kinds)
            for path, value in values.items():
                new = without(new, path) if value is MISSING else with_value(new, path, value)
        return new

    def _removed(self, new: Object, headers: dict[str, str]) -> tuple[Object, tuple[Path, ...]]:
        """The merged record without the fields that header `remove` names, and their paths (rule 6)."""
        paths = tuple(path_of(pointer) for pointer in json.loads(headers.get("remove", "[]")))
        if any(key_path[: len(path)] == path for path in paths for key_path in self.settings.key.paths):
            raise Rejected("bad_header")
        for path in paths:
            _check_removable(new, path)
        for path in paths:
            new = without(new, path)
        return new, paths

    def _metadata(self, record: Input) -> dict[str, str]:
        """The headers that an update passes on (merge.md, "Metadata"): its own correlation id, and unknown ones."""
        own_headers = {name: text for name, text in record.headers.items() if name in TRAVELLING or name not in OURS}
        if "correlation_id" in record.headers:
            own_headers["correlation_id"] = record.headers["correlation_id"]
        if self.settings.says_source:
            own_headers["source"] = f"orders.publish/{self.settings.partition}/{record.offset}"
        return own_headers

    def _end(self, key: bytes, kind: Literal["delete", "expire"], more: dict[str, str]) -> None:
        live = self.live.pop(key)
        self.last_versions[key] = live.version + 1
        self._note_update(key, kind, live.version + 1, live.record, None, dict(more), dict(more))

    def _note_update(
        self,
        key: bytes,
        kind: Literal["insert", "update", "delete", "expire"],
        version: int,
        old: Object | None,
        new: Object | None,
        sow: dict[str, str],
        delta_headers: dict[str, str],
        offset: int = -1,
    ) -> None:
        """Note an update with its two records."""
        own_headers = {"version": str(version)} | ({} if kind == "update" else {"kind": kind})
        changed: Object = {}
        gone: list[Path] = []
        if new is not None:
            changed, gone = (new, []) if old is None else difference(old, new)
        fields = self.settings.key.only(new if new is not None else (old or {}))
        is_empty = new is not None and not changed and not gone
        self.updates.append(
            Update(
                key, kind, version, new, applied(fields, changed, []), frozenset(gone), is_empty,
                sow | own_headers, delta_headers | own_headers, offset,
            )
        )  # fmt: skip


def _check_removable(record: Object, path: Path) -> None:
    """Refuse a path into an array or below a scalar (rule 6)."""
    value: Any = record
    for name in path:
        if not is_object(value):
            raise Rejected("bad_header")
        if name not in value:
            return
        value = value[name]
        if value is None:
            return
