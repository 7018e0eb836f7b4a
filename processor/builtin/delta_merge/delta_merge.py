"""Merges publishes and deltas into the record of their key: from `publish` to `sow` and `delta` (spec merge.md).

The fast path merges plain commands (`delta_merge.plain`), which most are; all others are merged here. Rare features
are checked once, in `init` or behind `if headers`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from processor.api import (
    Context,
    Headers,
    Incomplete,
    Input,
    Kind,
    Outgoing,
    Output,
    Processor,
    Record,
    RecordRejected,
    Stored,
    Value,
)
from processor.api.processor import lazy_model
from processor.builtin.delta_merge.acks import Acks
from processor.builtin.delta_merge.compiled_settings import compile_settings
from processor.builtin.delta_merge.deduplication import Deduplicator, Numbers
from processor.builtin.delta_merge.fast_path import LOOK_BYTES, LOOK_RECORDS, has_compiled, plain_deltas, read_states
from processor.builtin.delta_merge.filter_delete import ByFilter, FilterDelete, refuse_other_means
from processor.builtin.delta_merge.messages import Messages
from processor.builtin.delta_merge.placement import Placement, other_sow_key
from processor.builtin.delta_merge.record_change import EXPIRED_MAX, Lifetime, RecordChange, StoredUnreadable, key_alone
from processor.builtin.delta_merge.redelivery import Redelivery
from processor.queues.filler import QueueFiller, check_queue
from processor.wire import record_headers
from processor.wire.ack import DUPLICATE, MENDED
from processor.wire.command import KEY_BYTES_MAX, CommandReader, is_delete_by_filter, kind_of
from processor.wire.record_headers import EMPTY, INSERT, NO_BASE, VERSION_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel

    from processor.api import Codec, Command
    from processor.config import QueueConfig, TopicConfig
    from processor.merge import GroupedUpdate
    from processor.wire.command import CommandHeaders

# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class DeltaMerge(Processor):
    """Holds the state of the world of one partition."""

    settings_type = lazy_model("processor.config", "TopicConfig")
    is_repeatable = True
    implementation = "compiled code for plain deltas of JSON" if has_compiled else "Python"
    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (
        Output("sow"),
        Output("delta"),
        Output("publish", repartition=True),
        Output("ack"),
        Output("mark"),
    )

    def __init__(
        self,
        *,
        clock: Callable[[Record], int] | None = None,
        numbers: Numbers | None = None,
    ) -> None:
        """Create a merge, usually without arguments; the hooks are for batch programs, which read a history.

        Args:
            clock: the time at which a record is merged, milliseconds since the epoch, instead of the context's.
            numbers: finds the commands that repeat earlier ones, instead of the marks.
        """
        self._clock = clock
        self._given_numbers = numbers

    @classmethod
    def check(cls, name: str, settings: BaseModel, codec: Codec | None) -> None:
        """Refuse settings that cannot be compiled."""
        compile_settings(name, cast("TopicConfig", settings), codec)

    @classmethod
    def check_queue(cls, name: str, settings: QueueConfig, codec: Codec | None) -> None:
        """Refuse a queue whose filter cannot be used."""
        check_queue(name, settings, codec)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the settings once.

        At most 30 attributes: Python looks up those of an object with more of them a good deal slower.
        """
        topic = cast("TopicConfig", settings)  # Or an object with the same attributes, as on Spark.
        codec = self._codec = context.codec
        self._context, self._settings = context, topic
        self._decode = codec.decode
        compiled = self._plan = compile_settings(context.name, topic, codec)
        self._key, self._changes = compiled.key, RecordChange(context, topic, compiled)
        # Values that came out of messages need no checks; those that plug-ins and rules made do.
        is_decoded = compiled.rules is None and compiled.preprocess is None and compiled.enrich is None
        self._encode = codec.encode_decoded if is_decoded else codec.encode
        self._nulls_missing = topic.null_policy == "ignore"
        self._lifetime = Lifetime(topic.expiration)
        self._requests = CommandReader(topic.default_command, codec.header_names)
        self._is_plain = not codec.uses_headers and compiled.preprocess is None
        own_topic = context.source_topic
        self._source = f"{own_topic}/{context.partition}/".encode()
        self._numbers = self._given_numbers or Deduplicator(
            context.marks, f"{own_topic}/".encode(), topic.sequence_jump_max
        )
        self._acks = Acks(answers_moved=topic.moved_from is not None)
        self._messages = Messages(codec, compiled.preprocess)
        self._placement = Placement(context, topic, self._key, own_topic, self._messages.body)
        self._redelivery = Redelivery(context, self._requests, self._numbers, self._acks, self._placement)
        self._by_filter = FilterDelete(context, self._numbers, self._acks, self._redelivery, self._delete_many)
        self._lives = context.lives
        self._lives.is_used = True
        self._queues = QueueFiller(context, self._source, topic) if context.queues else None
        fast_path = plain_deltas(topic, codec, compiled, self._lives, self._placement)
        self._merge_plain = fast_path if self._clock is None else None  # It has one time for all records of a batch.
        self._begin_batch({})

    def process(self, records: Sequence[Record]) -> None:
        """Merge the records in order, until it is enough; a delete by filter is carried out between two batches."""
        unread: list[tuple[Record, RecordRejected]] = []
        if self._placement.reads_keys:
            records = self._placement.with_text_keys(records, lambda record, error: unread.append((record, error)))
            for record, _ in unread:
                self._numbers.refuse(record)  # Before a later number of the batch is taken.
        while records:
            records = self._merge_batch(records)
            if records and self._context.is_full():
                self._context.stop(records[0].offset)
                break
        for record, why in unread:
            if not records or record.offset < records[0].offset:  # Those behind the stop come again.
                self._reject(record, why)
        self._numbers.flush()
        self._acks.send(self._context)

    def _merge_batch(self, records: Sequence[Record]) -> Sequence[Record]:
        """Merge records up to a delete by filter, with one read and one write of states; returns those behind them."""
        came, states = read_states(self._context.state, records)
        self._begin_batch(states)
        is_again = records[0].offset <= self._redelivery.until
        take: Callable[[Record], int] = self._take_or_reject
        if is_again:
            take = partial(self._take_or_reject, take=self._take_again)
        if self._queues is not None:
            take = self._queues.follow(came, self._sow, take)
        try:
            if self._merge_plain is None or is_again:
                taken, made_bytes = self._merge_each(came, take), 0
            else:
                taken, made_bytes = self._merge_plain(
                    came, states, self._changed, self._sow, self._delta, take, self._context.is_full
                )
        except ByFilter as command:
            self._end_batch(None)
            return self._by_filter.take(command, records)
        self._end_batch(made_bytes)
        return records[taken:]

    def _merge_each(self, records: Sequence[Record], take: Callable[[Record], int]) -> int:
        """Merge records in parts, until the batch is full; return how many were merged."""
        look_bytes, clock = LOOK_BYTES, self._clock
        for number, record in enumerate(records):
            if number and (number % LOOK_RECORDS == 0 or self._made_bytes >= look_bytes):
                look_bytes = self._made_bytes + LOOK_BYTES
                if self._context.is_full(self._made_bytes):
                    return number
            if clock is not None:
                self._now_ms = clock(record)
            take(record)
        return len(records)

    def rejected(self, record: Record, error: RecordRejected) -> None:
        """Answer the publisher of a rejected command."""
        self._numbers.refuse(record)
        self._numbers.flush()
        self._acks.failed(record, error)
        self._acks.send(self._context)

    def punctuate(self, now_ms: int) -> bool | None:  # noqa: ARG002
        """Expire due records, in order of due time; not before every record published in time has been seen."""
        if self._by_filter.is_running:
            return self._by_filter.go_on()
        if due := self._context.state.due(self._context.stream_time_ms, EXPIRED_MAX):
            self._begin_batch(dict(due))
            for key, stored in due:
                self._expire(key, stored)
            self._end_batch()
        return None

    def _begin_batch(self, stored: dict[bytes, Stored | None]) -> None:
        self._stored = stored
        self._changed: dict[bytes, Stored | None] = {}
        self._sow: list[Outgoing] = []
        self._delta: list[Outgoing] = []
        self._made_bytes = 0  # Of the values of both.
        self._now_ms = self._context.now_ms

    def _end_batch(self, more_bytes: int | None = 0) -> None:
        """Hand over states and outputs; `more_bytes` were made in other ways, None: they were not counted."""
        context = self._context
        context.state.put_many(self._changed)
        size_bytes = None if more_bytes is None else self._made_bytes + more_bytes
        context.forward_many("sow", self._sow, size_bytes)
        context.forward_many("delta", self._delta, None if size_bytes is None else 0)
        if self._queues is not None:
            self._queues.fill(self._sow)

    def _take_or_reject(self, record: Record, take: Callable[[Record], None] | None = None) -> int:
        """Carry out or reject a command; return the bytes of all outputs made in this way since the batch began."""
        try:
            (take or self._take)(record)
        except RecordRejected as error:
            self._reject(record, error)
        return self._made_bytes

    def _reject(self, record: Record, error: RecordRejected) -> None:
        if self._placement.reads_keys:
            record = self._placement.original(record)
        self._context.reject(record, error.reason, error.detail)
        if record.headers:
            self._numbers.refuse(record)
            self._acks.failed(record, error)

    def _take(self, record: Record) -> None:
        """Carry out one command."""
        key, value, headers, _, timestamp_ms = record
        bytes_max = self._settings.max_record_bytes
        if value is not None and len(value) > bytes_max:
            raise RecordRejected("too_large", f"{len(value)} bytes; max_record_bytes is {bytes_max}")
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
                now = self._stored[key]
                self._acks.succeeded(
                    request,
                    key,
                    DUPLICATE,
                    records_deleted=0 if is_delete else None,
                    version=None if now is None else now[0],
                )
                return
        old = self._stored[key]
        if old is None:
            # A heal of a copy here is not for the record in the key's own partition: it is refused below.
            if not request.is_for_copy and (own_key := self._placement.elsewhere(key)) is not None:
                self._forward(record, own_key, request)
                self._context.count("moved")
                return
        # A record that was over at the publish time expires first. A publisher's clock may be ahead, ours counts too.
        elif 0 < old[2] <= timestamp_ms and old[2] <= self._now_ms:  # By number: twice as fast.
            self._expire(key, old)
            old = None
        if headers and 0 <= request.expect_version != (0 if old is None else old[0]):
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
                now = self._stored[key]
                ended = None if old is None else old[0] + 1
                version = ended if now is None else now[0]
                self._acks.succeeded(request, key, reason, records_deleted=deleted, version=version)

    def _apply(self, record: Record, key: bytes, old: Stored | None, request: CommandHeaders) -> int | None:
        """Carry out a command on the record of its key; return how many records a delete removed."""
        command = request[0]
        if record[1] is None or command == "sow_delete":
            return self._delete(record, key, old, request)
        if self._is_plain:
            body = self._decode(record[1])
        else:
            message = self._messages.read(record, request)
            body, command = message
            if type(message) is Incomplete:
                self._changes.check_incomplete(old, message)
        if type(body) is dict:
            self._key.check(key, body, self._nulls_missing and command == "delta_publish")
        elif self._codec.can_delta or self._key.pointers or self._plan.enrich:
            raise RecordRejected("not_an_object", f"the message is {kind_of(body)}; a record is an object")
        if command == "sow_delete":
            return self._delete(record, key, old, request)
        self._update(record, key, old, request, command, body)
        return None

    def _forward(self, record: Record, key: bytes, request: CommandHeaders) -> None:
        """Send a command to the key's own partition."""
        self._placement.forward(record, key, request, is_mended=self._numbers.pass_on(request))

    def _take_again(self, record: Record) -> None:
        """Carry out a command that may be in SOW already."""
        if not self._redelivery.is_done(record):
            self._take(record)

    def _update(
        self, record: Record, key: bytes, old: Stored | None, request: CommandHeaders, command: Command, body: Value
    ) -> None:
        """Replace or merge a record; write it to `sow` and its change to `delta`."""
        codec, is_enriched, is_delta = self._codec, self._plan.enrich is not None, command == "delta_publish"
        grouped: GroupedUpdate | None = None
        if self._plan.prepares:
            body, grouped = self._changes.prepare(old, command, body, request.remove, request.group_stamps)
            if is_enriched:
                self._key.check(key, body, self._nulls_missing and is_delta)
        is_completed = not is_delta and codec.can_delta and self._changes.add_key_field(key, old, body)
        headers: Headers
        if old is None:
            if len(key) > KEY_BYTES_MAX:
                raise RecordRejected("too_large", f"its key has {len(key)} bytes; at most {KEY_BYTES_MAX}")
            version = self._lives.first_version(key, record.offset)
            headers = [(VERSION_NAME, b"%d" % version), INSERT]
        else:
            version = old[0] + 1
            headers = [(VERSION_NAME, b"%d" % version)]
        if request.correlation_id or request.passed or self._settings.source_header:
            headers = headers + self._more(record, request)
        sow_headers = delta_headers = headers
        # A delta leaves the record its own time to live; a full record has the topic's (merge.md, Expiration).
        kept = old[4] if is_delta and old is not None else b""
        expires_at_ms, expiration = self._lifetime.begin(self._now_ms, request.expiration, kept)
        if expires_at_ms or expiration:
            sow_headers = record_headers.with_end(headers, expires_at_ms, expiration)
        try:
            if codec.can_delta:
                is_replaced = False
                try:
                    merged, changed, removed = self._changes.of(old, command, body, request.remove, grouped)
                except StoredUnreadable:
                    if is_delta:
                        raise
                    merged, changed, removed = self._changes.of(None, command, body, request.remove, grouped)
                    is_replaced = True
                delta = self._key.with_delta(merged, changed)
                if codec.uses_headers:
                    value, more = codec.encode_delta(delta)
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
                data = codec.encode_decoded(merged)  # All that is new in it was checked with the delta.
            else:
                data = value = self._messages.whole(record, request, body, is_enriched=is_enriched)
        except TypeError as error:
            if is_completed:
                raise RecordRejected("missing_key", f"no {self._key.pointers[0]} in the message: {error}") from None
            raise RecordRejected("schema_mismatch", str(error)) from None
        if len(data) > self._settings.max_record_bytes:
            raise RecordRejected(
                "too_large", f"merged: {len(data)} bytes; max_record_bytes is {self._settings.max_record_bytes}"
            )
        group_stamps = b""
        if grouped is not None and (group_stamps := grouped.stamps(merged)):
            sow_headers = [*sow_headers, record_headers.group_stamps_header(group_stamps)]
        self._sow.append((key, data, sow_headers))
        self._delta.append((key, value, delta_headers))
        self._made_bytes += len(data) + len(value)
        source_offset = record.offset if self._settings.source_header else -1
        new = _new(Stored, (version, data, expires_at_ms, source_offset, expiration, group_stamps))
        self._stored[key] = self._changed[key] = new

    def _delete(self, record: Record, key: bytes, old: Stored | None, request: CommandHeaders) -> int:
        """Remove a record, if there is one; return how many."""
        refuse_other_means(record, request)
        if old is None:
            self._context.count("delete_of_nothing")
            return 0
        self._remove(key, old, "delete", self._more(record, request))
        return 1

    def _delete_many(self, record: Record, request: CommandHeaders, matching: Sequence[tuple[bytes, Stored]]) -> None:
        """Remove the records that a delete by filter finds."""
        more = self._more(record, request)
        self._begin_batch(dict(matching))
        for key, old in matching:
            self._remove(key, old, "delete", more)
        self._end_batch()

    def _expire(self, key: bytes, old: Stored) -> None:
        """Remove a record whose time is over; it comes from no input record."""
        self._remove(key, old, "expire", [])
        self._context.count("expired")

    def _remove(self, key: bytes, old: Stored, kind: Kind, more: Headers) -> None:
        """Write a tombstone, and the key fields on the delta topic: the last version of the key's life."""
        version = old.version + 1
        headers = [*record_headers.removal_headers(version, kind), *more]
        value, delta_headers = key_alone(self._codec, self._key, old)
        self._sow.append((key, None, headers))
        self._delta.append((key, value, headers + delta_headers))
        self._made_bytes += len(value)
        self._stored[key] = self._changed[key] = None
        self._lives.end(key, version)

    def _more(self, record: Record, request: CommandHeaders) -> Headers:
        """The headers of both outputs besides the version."""
        headers: Headers = []
        if request.correlation_id:
            headers.append(record_headers.correlation_id_header(request.correlation_id))
        if self._settings.source_header:
            headers.append(record_headers.source_header(self._source, record.offset))
        return headers + request.passed
