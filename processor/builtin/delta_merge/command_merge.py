"""Carries out one command after the other on the states of a batch: the merge in parts, which knows every feature.

Every command that the compiled fold leaves comes by, and all of a topic that is not plain (`plain`). So rare features
are checked once, in `__init__`, or behind `if headers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.api import Headers, Incomplete, Kind, Outgoing, RecordRejected, Stored, Value
from processor.api.builtin import builtin_context
from processor.builtin.delta_merge.filter_delete import ByFilter, refuse_other_means
from processor.builtin.delta_merge.placement import other_sow_key
from processor.builtin.delta_merge.record_change import Lifetime, RecordChange, StoredUnreadable, key_alone
from processor.wire import record_headers
from processor.wire.ack import DUPLICATE, MENDED
from processor.wire.command import KEY_BYTES_MAX, is_delete_by_filter, kind_of
from processor.wire.record_headers import EMPTY, INSERT, NO_BASE, VERSION_NAME

if TYPE_CHECKING:
    from processor.api import Command, Context, Record
    from processor.builtin.delta_merge.acks import Acks
    from processor.builtin.delta_merge.compiled_settings import CompiledSettings
    from processor.builtin.delta_merge.deduplication import Numbers
    from processor.builtin.delta_merge.messages import Messages
    from processor.builtin.delta_merge.placement import Placement
    from processor.config import TopicConfig
    from processor.merge import GroupedUpdate
    from processor.wire.command import CommandHeaders, CommandReader

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class CommandMerge:
    """The merge of single commands in one partition, and the outputs of the batch at hand."""

    def __init__(
        self,
        context: Context,
        settings: TopicConfig,
        compiled: CompiledSettings,
        *,
        source: bytes,
        requests: CommandReader,
        numbers: Numbers,
        acks: Acks,
        placement: Placement,
        messages: Messages,
    ) -> None:
        """Compile everything that is the same for all commands of the topic.

        Args:
            context: the partition's.
            settings: the topic's.
            compiled: the same, compiled.
            source: `topic/partition/` of the input, for header `source`.
            requests: reads the headers of a command.
            numbers: finds the commands that repeat earlier ones.
            acks: answers publishers.
            placement: finds the partition of a key.
            messages: reads messages that need headers or a preprocessor.
        """
        codec = self._codec = context.codec
        self._context, self._source = context, source
        self._requests, self._numbers, self._acks = requests, numbers, acks
        self._placement, self._messages = placement, messages
        self._key, self._changes = compiled.key, RecordChange(context, settings, compiled)
        self._lifetime, self._lives = Lifetime(settings.expiration), builtin_context(context).lives
        self._bytes_max, self._has_source = settings.max_record_bytes, settings.source_header
        self._nulls_missing = settings.null_policy == "ignore"
        self._can_delta, self._uses_headers = codec.can_delta, codec.uses_headers
        self._is_enriched, self._prepares = compiled.enrich is not None, compiled.prepares
        self._decode = None if codec.uses_headers or compiled.preprocess is not None else codec.decode
        # Values that came out of messages need no checks; those that plug-ins and rules made do.
        is_decoded = compiled.rules is None and compiled.preprocess is None and compiled.enrich is None
        self._encode, self._encode_decoded = codec.encode_decoded if is_decoded else codec.encode, codec.encode_decoded
        self.begin({})

    def begin(self, states: dict[bytes, Stored | None]) -> None:
        """Begin a batch, with the states of its keys."""
        self.states = states
        """The state of each key; None: there is no record."""
        self.changed: dict[bytes, Stored | None] = {}
        """The states that the batch has changed."""
        self.sow: list[Outgoing] = []
        """The SOW records of the batch."""
        self.delta: list[Outgoing] = []
        """The delta records of the batch."""
        self.output_bytes = 0
        """The bytes of the values in both that were made here."""
        self.now_ms = self._context.now_ms
        """The time at which the commands are merged."""

    def merge(self, record: Record) -> None:
        """Carry out one command.

        Raises:
            RecordRejected: the command is refused; it has changed nothing.
            ByFilter: it is a delete by filter, which needs more than one key.
        """
        key, value, headers, _, timestamp_ms = record
        if value is not None and len(value) > self._bytes_max:
            raise RecordRejected("too_large", f"{len(value)} bytes; max_record_bytes is {self._bytes_max}")
        request = self._requests.read(headers) if headers else self._requests.plain
        if key is None:
            if is_delete_by_filter(record):
                raise ByFilter(record, request)
            self._forward(record, self._placement.key_of_keyless(record, request), request)
            self._context.count("rekeyed")
            return
        if headers:
            if request.sow_key is not None and request.sow_key != key:
                raise other_sow_key(request.sow_key, key)
            if request.sequence >= 0 and self._numbers.is_duplicate(record, request):
                self._context.count("duplicate")
                is_delete = value is None or request.command == "sow_delete"
                now = self.states[key]
                self._acks.succeeded(
                    request,
                    key,
                    DUPLICATE,
                    records_deleted=0 if is_delete else None,
                    version=None if now is None else now.version,
                )
                return
        old = self.states[key]
        # A record that was over at the publish time expires first. A publisher's clock may be ahead, ours counts too.
        if old is not None and (end_ms := old.expires_at_ms) and end_ms <= timestamp_ms and end_ms <= self.now_ms:
            self.expire(key, old)
            old = None
        # A heal of a copy here is not for the record in the key's own partition: it is refused below.
        if old is None and not request.is_for_copy and (own_key := self._placement.elsewhere(key)) is not None:
            self._forward(record, own_key, request)
            self._context.count("moved")
            return
        if headers and 0 <= request.expect_version != (0 if old is None else old.version):
            self._context.count("conflict")
            self._acks.refused(request, key, old)
            self._numbers.refuse(record)
            return
        deleted = self._apply(record, key, old, request)
        if headers:
            is_late = request.sequence >= 0 and self._numbers.take(request)
            if request.acks:
                # Its client's other numbers on this partition are in another order.
                reason = "rekeyed" if self._numbers.came_in(request) else MENDED if is_late else None
                now = self.states[key]
                ended = None if old is None else old.version + 1
                version = ended if now is None else now.version
                self._acks.succeeded(request, key, reason, records_deleted=deleted, version=version)

    def _apply(self, record: Record, key: bytes, old: Stored | None, request: CommandHeaders) -> int | None:
        """Carry out a command on the record of its key; return how many records a delete removed."""
        value, command = record.value, request.command
        if value is None or command == "sow_delete":
            return self._delete(record, key, old, request)
        if self._decode is not None:
            body = self._decode(value)
        else:
            message = self._messages.read(record, request)
            body, command = message
            if type(message) is Incomplete:
                self._changes.check_incomplete(old, message)
        if type(body) is dict:
            self._key.check(key, body, self._nulls_missing and command == "delta_publish")
        elif self._can_delta or self._key.pointers or self._is_enriched:
            raise RecordRejected("not_an_object", f"the message is {kind_of(body)}; a record is an object")
        if command == "sow_delete":
            return self._delete(record, key, old, request)
        self._update(record, key, old, request, command, body)
        return None

    def _forward(self, record: Record, key: bytes, request: CommandHeaders) -> None:
        """Send a command to the key's own partition."""
        self._placement.forward(record, key, request, is_mended=self._numbers.pass_on(request))

    def _update(
        self, record: Record, key: bytes, old: Stored | None, request: CommandHeaders, command: Command, body: Value
    ) -> None:
        """Replace or merge a record; write it to `sow` and its change to `delta`."""
        is_delta = command == "delta_publish"
        grouped: GroupedUpdate | None = None
        if self._prepares:
            body, grouped = self._changes.prepare(old, command, body, request.remove, request.group_stamps)
            if self._is_enriched:
                self._key.check(key, body, self._nulls_missing and is_delta)
        is_full = (not is_delta or not self._can_delta) and type(body) is dict
        is_completed = is_full and self._changes.add_key_field(key, old, body)
        headers: Headers
        if old is None:
            if len(key) > KEY_BYTES_MAX:
                raise RecordRejected("too_large", f"its key has {len(key)} bytes; at most {KEY_BYTES_MAX}")
            version = self._lives.first_version(key, record.offset)
            headers = [(VERSION_NAME, b"%d" % version), INSERT]
        else:
            version = old.version + 1
            headers = [(VERSION_NAME, b"%d" % version)]
        remove = own_lifetime = None
        if record.headers or self._has_source:
            remove, own_lifetime = request.remove, request.expiration
            headers += self.more_headers(record, request)
        sow_headers = delta_headers = headers
        # A delta leaves the record its own time to live; a full record has the topic's (merge.md, Expiration).
        old_lifetime = old.expiration if is_delta and old is not None else b""
        expires_at_ms, expiration = 0, b""
        if self._lifetime.is_limited or own_lifetime is not None or old_lifetime:
            expires_at_ms, expiration = self._lifetime.begin(self.now_ms, own_lifetime, old_lifetime)
            sow_headers = record_headers.with_end(headers, expires_at_ms, expiration)
        try:
            if self._can_delta:
                is_replaced = False
                try:
                    merged, changed, removed = self._changes.of(old, command, body, remove, grouped)
                except StoredUnreadable:
                    if is_delta:
                        raise
                    merged, changed, removed = self._changes.of(None, command, body, remove, grouped)
                    is_replaced = True
                delta = self._key.with_delta(merged, changed)
                if self._uses_headers:
                    value, more = self._codec.encode_delta(delta)
                    delta_headers = headers + more
                else:
                    value = self._encode(delta)
                if removed:
                    delta_headers = [*delta_headers, record_headers.removed_header(removed)]
                elif not changed:
                    delta_headers = [*delta_headers, EMPTY]
                if is_replaced:  # The versions go on; the delta is all of the record and applies to none.
                    delta_headers = [*delta_headers, NO_BASE]
                    self._context.count("unreadable_replaced")
                data = self._encode_decoded(merged)  # All that is new in it was checked with the delta.
            else:
                data = value = self._messages.whole(
                    record, request, body, is_enriched=self._is_enriched, is_completed=is_completed
                )
        except TypeError as error:
            if is_completed:
                raise RecordRejected("missing_key", f"no {self._key.pointers[0]} in the message: {error}") from None
            raise RecordRejected("schema_mismatch", str(error)) from None
        if len(data) > self._bytes_max:
            raise RecordRejected("too_large", f"merged: {len(data)} bytes; max_record_bytes is {self._bytes_max}")
        group_stamps = b""
        if grouped is not None and (group_stamps := grouped.stamps(merged)):
            sow_headers = [*sow_headers, record_headers.group_stamps_header(group_stamps)]
        self.sow.append((key, data, sow_headers))
        self.delta.append((key, value, delta_headers))
        self.output_bytes += len(data) + len(value)
        source_offset = record.offset if self._has_source else -1
        new = _new(Stored, (version, data, expires_at_ms, source_offset, expiration, group_stamps))
        self.states[key] = self.changed[key] = new

    def _delete(self, record: Record, key: bytes, old: Stored | None, request: CommandHeaders) -> int:
        """Remove a record, if there is one; return how many."""
        refuse_other_means(record, request)
        if old is None:
            self._context.count("delete_of_nothing")
            return 0
        self.remove(key, old, "delete", self.more_headers(record, request))
        return 1

    def expire(self, key: bytes, old: Stored) -> None:
        """Remove a record whose time is over; it comes from no input record."""
        self.remove(key, old, "expire", [])
        self._context.count("expired")

    def remove(self, key: bytes, old: Stored, kind: Kind, more: Headers) -> None:
        """Write a tombstone, and the key fields on the delta topic: the last version of the key's life."""
        version = old.version + 1
        headers = [*record_headers.removal_headers(version, kind), *more]
        value, delta_headers = key_alone(self._codec, self._key, old)
        self.sow.append((key, None, headers))
        self.delta.append((key, value, headers + delta_headers))
        self.output_bytes += len(value)
        self.states[key] = self.changed[key] = None
        self._lives.end(key, version)

    def more_headers(self, record: Record, request: CommandHeaders) -> Headers:
        """The headers of both outputs besides the version."""
        headers: Headers = []
        if request.correlation_id:
            headers.append(record_headers.correlation_id_header(request.correlation_id))
        if self._has_source:
            headers.append(record_headers.source_header(self._source, record.offset))
        return headers + request.passed
