"""Merges publishes and deltas into the record of their key: from `publish` to `sow` and `delta` (spec merge.md).

What most records are, deltas without headers on a topic of plain settings, `plain_deltas` merges; all others come
here. What they ask for is looked at once, in `init` or behind `if headers`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

from processor.api import (
    Change,
    Context,
    Headers,
    Input,
    Kind,
    Name,
    Outgoing,
    Output,
    Processor,
    Record,
    RecordRejected,
    Stored,
    Value,
)
from processor.config import TopicConfig
from processor.merge import diff, insert, remove_paths
from processor.plugins.acks import Acks
from processor.plugins.expiry import EXPIRED_MAX, ttl_ms
from processor.plugins.key_alone import key_alone
from processor.plugins.plain_deltas import EMPTY, INSERT_HEADERS, plain_deltas
from processor.plugins.plan import plan
from processor.plugins.redelivery import Redelivery
from processor.plugins.removed import removed_header
from processor.plugins.request import KEY_BYTES_MAX, RequestReader, kind_of
from processor.plugins.sequences import Sequences
from processor.topics import topic_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel

    from processor.api import Codec
    from processor.plugins.request import Request

_VERSIONS_MAX = 4096  # Header lists kept for versions below this; a key updated more often pays for its own.

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class DeltaMerge(Processor):
    """Holds the state of the world of one partition."""

    settings_type = TopicConfig
    is_repeatable = True
    sequences_type: ClassVar[type[Sequences]] = Sequences
    """What recognises repeats; another one for a host that takes them out of the input itself."""
    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (
        Output("sow"),
        Output("delta"),
        Output("publish", repartition=True),
        Output("ack"),
        Output("mark"),
    )

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse what cannot be compiled."""
        assert isinstance(settings, TopicConfig)
        plan(name, settings, codec)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile what the settings say once.

        At most 30 attributes: Python looks up those of an object with more of them a good deal slower.
        """
        assert isinstance(settings, TopicConfig)
        codec = context.codec
        self._context = context
        self._decode, self._decode_own = codec.decode, codec.decode_own
        self._max_bytes = settings.max_record_bytes
        made = plan(context.name, settings, codec)
        self._key, self._policy, self._merge, self._rules, self._preprocess, self._enrich = made
        # Values that came out of messages need no checks; those that plug-ins and rules made do.
        is_decoded = made.rules is None and made.preprocess is None and made.enrich is None
        self._encode = codec.encode_decoded if is_decoded else codec.encode
        self._nulls_missing = settings.null_policy == "ignore"
        name = context.name
        self._requests = RequestReader(settings.default_command, ttl_ms(settings.expiration), codec.header_names)
        self._can_delta, self._uses_headers = codec.can_delta, codec.uses_headers
        self._completes = codec.completes
        self._is_plain = not codec.uses_headers and self._preprocess is None
        own_topic = topic_name(name, "publish")
        self._source = f"{own_topic}/{context.partition}/".encode()
        self._says_source = settings.source_header
        self._sequences = self.sequences_type(context.marks, f"{own_topic}/".encode())
        self._acks = Acks()
        self._redelivery = Redelivery(context, self._requests, self._sequences, self._acks, self._own_key)
        self._version_headers = _version_headers()
        # Whoever takes records in another way takes all of them so.
        is_ours = type(self)._take is DeltaMerge._take  # noqa: SLF001 - our own
        self._merge_plain = (
            plain_deltas(settings, codec, made, self._requests.plain, self._version_headers) if is_ours else None
        )
        self._begin_batch({})

    def process(self, records: Sequence[Record]) -> None:
        """Merge the records in order: one read of all their keys, then one write of all that changed."""
        context = self._context
        self._begin_batch(context.state.get_many([record[0] for record in records if record[0] is not None]))
        if records[0].offset <= self._redelivery.until:
            for record in records:
                self._take_or_reject(record, self._take_again)
        elif self._merge_plain is not None:
            self._merge_plain(records, self._stored, self._changed, self._sow, self._delta, self._take_or_reject)
        else:
            for record in records:
                self._take_or_reject(record)
        self._end_batch()
        self._sequences.flush()
        if acks := self._acks.take():
            context.forward_many("ack", acks)

    def rejected(self, record: Record, error: RecordRejected) -> None:
        """Tell the publisher."""
        self._acks.failed(record, error)
        self._context.forward_many("ack", self._acks.take())

    def punctuate(self, now_ms: int) -> None:  # noqa: ARG002
        """Expire what is due, in order of due time; not before every record published in time has been seen."""
        due = self._context.state.due(self._context.stream_time_ms, EXPIRED_MAX)
        if not due:
            return
        self._begin_batch(dict(due))
        for key, stored in due:
            self._expire(key, stored)
        self._end_batch()

    def _begin_batch(self, stored: dict[bytes, Stored | None]) -> None:
        self._stored = stored
        self._changed: dict[bytes, Stored | None] = {}
        self._sow: list[Outgoing] = []
        self._delta: list[Outgoing] = []
        self._now_ms = self._context.now_ms

    def _end_batch(self) -> None:
        context = self._context
        context.state.put_many(self._changed)
        context.forward_many("sow", self._sow)
        context.forward_many("delta", self._delta)

    def _take_or_reject(self, record: Record, take: Callable[[Record], None] | None = None) -> None:
        """Do what one record asks for, or say why not."""
        try:
            (take or self._take)(record)
        except RecordRejected as error:
            self._context.reject(record, error.reason, error.detail)
            if record.headers:
                self._acks.failed(record, error)

    def _take(self, record: Record) -> None:
        """Do what one record asks for."""
        key, value, headers, _, timestamp_ms = record
        if value is not None and len(value) > self._max_bytes:
            raise RecordRejected("too_large", f"{len(value)} bytes; max_record_bytes is {self._max_bytes}")
        request = self._requests.read(headers) if headers else self._requests.plain
        if key is None:
            self._rekey(record, request)
            return
        if headers:
            if request.sow_key is not None and request.sow_key != key:
                raise _other_sow_key(request.sow_key, key)
            if request.sequence >= 0 and self._sequences.is_duplicate(request):
                self._context.count("duplicate")
                self._acks.succeeded(request, key, "duplicate")
                return
        old = self._stored[key]
        # What was over when this was published is expired first. A publisher's clock may be ahead, ours counts too.
        if old is not None and 0 < old[2] <= timestamp_ms and old[2] <= self._now_ms:  # By number: twice as fast.
            self._expire(key, old)
            old = None
        command = request[0]
        if value is None or command == "sow_delete":
            self._delete(record, key, old, request)
        else:
            body = self._decode(value) if self._is_plain else self._message(record, request)
            if type(body) is dict:
                self._key.check(key, body, self._nulls_missing and command == "delta_publish")
            elif self._can_delta or self._key.pointers or self._enrich:
                raise RecordRejected("not_an_object", f"the message is {kind_of(body)}; a record is an object")
            self._update(record, key, old, request, body)
        if headers:
            if request.sequence >= 0:
                self._sequences.take(request)
            if request.acks:
                # Its client's other numbers on this partition are in another order.
                self._acks.succeeded(request, key, "rekeyed" if self._sequences.came_in(request) else None)

    def _take_again(self, record: Record) -> None:
        """The same for a record that may be in SOW already."""
        if not self._redelivery.is_done(record):
            self._take(record)

    def _message(self, record: Record, request: Request) -> Value:
        """A record's body where the message type or a plug-in wants more than its bytes."""
        value = record.value
        assert value is not None
        if self._uses_headers:
            is_delta = request.command == "delta_publish"
            body = self._context.codec.decode_command(value, record.headers or [], is_delta=is_delta)
        else:
            body = self._decode(value)
        return body if self._preprocess is None or type(body) is not dict else self._preprocess(body)

    def _update(self, record: Record, key: bytes, old: Stored | None, request: Request, body: Value) -> None:
        """Replace or merge a record, and tell both outputs."""
        command, passed, ttl_ms, correlation_id, remove, _, _, _, _, _, _, _ = request  # Faster than five by name.
        if self._enrich is not None:
            body = self._enrich(body, None if old is None else self._decode_own(old.value))
            self._key.check(key, body, self._nulls_missing and command == "delta_publish")
        headers: Headers
        if old is None:
            if len(key) > KEY_BYTES_MAX:
                raise RecordRejected("too_large", f"its key has {len(key)} bytes; at most {KEY_BYTES_MAX}")
            version, headers = 1, INSERT_HEADERS
        else:
            version = old[0] + 1
            correlation_id = correlation_id or old[4]
            headers = self._version_headers[version] if version < _VERSIONS_MAX else [(Name.VERSION, b"%d" % version)]
        if correlation_id or passed or self._says_source:
            headers = headers + self._more(record, request, correlation_id)
        sow_headers = delta_headers = headers
        expires_at_ms = 0
        if ttl_ms:
            expires_at_ms = self._now_ms + ttl_ms
            sow_headers = [(Name.EXPIRES_AT, b"%d" % expires_at_ms), *headers]
        try:
            if self._can_delta:
                change = self._change(old, command, body, remove)
                if self._completes:
                    change = self._completed(old, change)
                merged, changed, removed = change
                delta = self._key.with_delta(merged, changed)
                if self._uses_headers:
                    told, more = self._context.codec.encode_delta(delta)
                    delta_headers = headers + more
                else:
                    told = self._encode(delta)
                if removed:
                    delta_headers = [*delta_headers, removed_header(removed)]
                elif not changed:
                    delta_headers = [*delta_headers, EMPTY]
                # All that is new in it was checked with the delta.
                data = self._context.codec.encode_decoded(merged)
            else:
                data = told = self._whole(record, request, body)
        except TypeError as error:
            raise RecordRejected("schema_mismatch", str(error)) from None
        if len(data) > self._max_bytes:
            raise RecordRejected("too_large", f"merged: {len(data)} bytes; max_record_bytes is {self._max_bytes}")
        self._sow.append((key, data, sow_headers))
        self._delta.append((key, told, delta_headers))
        source_offset = record.offset if self._says_source else -1
        new = _new(Stored, (version, data, expires_at_ms, source_offset, correlation_id))
        self._stored[key] = self._changed[key] = new

    def _change(self, old: Stored | None, command: str, body: Value, remove: Value) -> Change:
        """What a command does to the record."""
        if command == "publish":
            change = diff(None if old is None else self._decode_own(old.value), body)
        elif old is None:
            if self._rules is not None:
                self._apply_rules(None, body)
            change = insert(body, self._policy)
        else:
            record = self._decode_own(old.value)
            self._key.protect(record, body, self._nulls_missing)
            if self._rules is not None:
                self._apply_rules(record, body)
            change = self._merge(record, body)
        if remove is None:
            return change
        # The removal comes after the merge and may undo parts of it: what changed in all is the difference.
        remove_paths(change.record, remove, self._key.pointers)
        return diff(None if old is None else self._decode_own(old.value), change.record)

    def _completed(self, old: Stored | None, change: Change) -> Change:
        """The same where the message type fills in what a record lacks; what is new in it is new in the delta too."""
        self._context.codec.complete(change.record)
        if not change.removed:
            return change
        # What was removed may be back, as a default.
        return diff(None if old is None else self._decode_own(old.value), change.record)

    def _apply_rules(self, record: Value | None, delta: Value) -> None:
        """Change a delta as the topic's sequence groups and merge rules say."""
        assert self._rules is not None
        if stale := self._rules(record, delta):
            self._context.count("stale_group", stale)

    def _whole(self, record: Record, request: Request, body: Value) -> bytes:
        """The message of a type without deltas: the bytes as they came, unless a plug-in changed them."""
        if request.remove is not None:
            raise RecordRejected("bad_header", f"header {Name.REMOVE}: messages of this type are published whole")
        assert record.value is not None
        return record.value if self._preprocess is None and self._enrich is None else self._encode(body)

    def _delete(self, record: Record, key: bytes, old: Stored | None, request: Request) -> None:
        """Remove a record, if there is one."""
        if old is None:
            self._context.count("delete_of_nothing")
            return
        self._remove(key, old, "delete", self._more(record, request, request.correlation_id or old.correlation_id))

    def _expire(self, key: bytes, old: Stored) -> None:
        """Remove a record whose time is over; it comes from no input record."""
        self._remove(key, old, "expire", [(Name.CORRELATION_ID, old.correlation_id)] if old.correlation_id else [])
        self._context.count("expired")

    def _remove(self, key: bytes, old: Stored, kind: Kind, more: Headers) -> None:
        """A tombstone, and the key fields on the delta topic."""
        headers: Headers = [(Name.VERSION, b"%d" % (old.version + 1)), (Name.KIND, kind.encode()), *more]
        told, delta_headers = key_alone(self._context.codec, self._key, old)
        self._sow.append((key, None, headers))
        self._delta.append((key, told, headers + delta_headers))
        self._stored[key] = self._changed[key] = None

    def _more(self, record: Record, request: Request, correlation_id: bytes) -> Headers:
        """What both outputs say besides the version."""
        headers = []
        if correlation_id:
            headers.append((Name.CORRELATION_ID, correlation_id))
        if self._says_source:
            headers.append((Name.SOURCE, self._source + b"%d" % record.offset))
        return headers + request.passed

    def _rekey(self, record: Record, request: Request) -> None:
        """Send a record without a Kafka key to the input again, keyed: here would be the wrong partition.

        It goes as it came: what plug-ins make of it they make of it there.
        """
        key = self._own_key(record, request)
        headers = record.headers or []
        if request.sequence >= 0:
            headers = [*headers, (Name.SOURCE, self._source + b"%d" % record.offset)]
        self._context.forward("publish", key, record.value, headers)
        self._context.count("rekeyed")

    def _own_key(self, record: Record, request: Request) -> bytes:
        """The key of a record that came without one, by header or by its body."""
        if not self._key.pointers:
            if request.sow_key is None:
                raise RecordRejected("missing_key", f"no Kafka key, and no header {Name.SOW_KEY}")
            return request.sow_key
        body = None if record.value is None else self._message(record, request)
        text = self._key.text(body) if type(body) is dict else None
        if text is None:
            fields = ", ".join(self._key.pointers)
            raise RecordRejected("missing_key", f"no Kafka key, and no {fields} in the message")
        key = text.encode()
        if request.sow_key not in (None, key):
            raise _other_sow_key(request.sow_key, key)
        return key


def _other_sow_key(sow_key: bytes | None, key: bytes) -> RecordRejected:
    return RecordRejected("key_mismatch", f"header {Name.SOW_KEY} is {sow_key!r:.100}, but the key is {key!r:.100}")


@functools.cache
def _version_headers() -> list[Headers]:
    """The headers of most records, which carry their version and nothing else: made once and never changed."""
    return [[(Name.VERSION, b"%d" % version)] for version in range(_VERSIONS_MAX)]
