"""A topic without a SOW (`sow: false`): each message is checked and goes to `delta` as it was published.

No record is kept, so nothing is merged, deleted or expired, and there is no `.sow` topic. The promises of a worker
for any topic remain: bad input goes to the dead letters, repeats of a sequence are dropped, acks are sent, and all of
it exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from processor.api import (
    Context,
    Headers,
    Outgoing,
    Output,
    Record,
    RecordRejected,
    Value,
)
from processor.builtin.delta_merge.acks import Acks, AnsweringProcessor
from processor.builtin.delta_merge.compiled_settings import compile_settings
from processor.builtin.delta_merge.deduplication import Deduplicator
from processor.builtin.delta_merge.messages import Messages
from processor.builtin.delta_merge.placement import Placement, other_sow_key
from processor.config import TopicConfig
from processor.wire.ack import DUPLICATE, MENDED
from processor.wire.command import KEY_BYTES_MAX, CommandReader, kind_of
from processor.wire.headers import FIELDS_NAME
from processor.wire.record_headers import command_header, correlation_id_header, source_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from processor.api import Command
    from processor.wire.command import CommandHeaders


class PassThrough(AnsweringProcessor):
    """Delivers the messages of one partition."""

    settings_type = TopicConfig
    outputs: ClassVar[tuple[Output, ...]] = (
        Output("delta"),
        Output("publish", repartition=True),
        Output("ack"),
        Output("mark"),
    )

    def init(self, context: Context, settings: BaseModel) -> None:
        """Compile the settings once."""
        assert isinstance(settings, TopicConfig)
        codec = context.codec
        self._context, self._codec, self._settings = context, codec, settings
        compiled = compile_settings(context.name, settings, codec)
        self._key, self._preprocess, self._enrich = compiled.key, compiled.preprocess, compiled.enrich
        self._requests = CommandReader(settings.default_command, codec.header_names)
        # Headers that are a part of the message go where its bytes go.
        self._message_headers = codec.header_names | ({FIELDS_NAME} if codec.uses_headers else frozenset())
        own_topic = context.source_topic
        self._source = f"{own_topic}/{context.partition}/".encode()
        self._numbers = Deduplicator(context.marks, f"{own_topic}/".encode(), settings.sequence_jump_max)
        self._acks = Acks()
        self._messages = Messages(codec, compiled.preprocess)
        self._placement = Placement(context, settings, self._key, own_topic, self._messages.body)
        self._delta: list[Outgoing] = []
        self._made_bytes = 0

    def process(self, records: Sequence[Record]) -> None:
        """Deliver the messages in order, until it is enough."""
        context, stopped_offset = self._context, None
        self._delta, self._made_bytes = [], 0
        records, unread = self._with_text_keys(records)
        for number, record in enumerate(records):
            if number and context.is_full(self._made_bytes):
                stopped_offset = record.offset
                context.stop(stopped_offset)
                break
            try:
                self._take(record)
            except RecordRejected as error:
                self._reject(record, error)
        self._reject_unread(unread, stopped_offset)
        context.forward_many("delta", self._delta, self._made_bytes)
        self._answer()

    def _take(self, record: Record) -> None:
        """Carry out one command: check its message and deliver it, or answer it."""
        key, value, headers = record.key, record.value, record.headers
        if value is not None and len(value) > self._settings.max_record_bytes:
            raise _too_large(len(value), self._settings)
        request = self._requests.read(headers) if headers else self._requests.plain
        is_delete = value is None or request.command == "sow_delete"
        if key is None and not is_delete:
            self._forward(record, self._placement.key_of_keyless(record, request), request)
            self._context.count("rekeyed")
            return
        if key is not None and request.sow_key not in (None, key):
            raise other_sow_key(request.sow_key, key)
        if request.sequence >= 0 and self._numbers.is_duplicate(record, request):
            self._context.count("duplicate")
            self._acks.succeeded(request, key, DUPLICATE, records_deleted=0 if is_delete else None)
            return
        if key is not None and (own_key := self._placement.elsewhere(key)) is not None:
            self._forward(record, own_key, request)
            self._context.count("moved")
            return
        if not is_delete:
            assert key is not None
            is_delete = not self._deliver(record, key, request)
        if is_delete:
            self._context.count("delete_of_nothing")
        is_late = request.sequence >= 0 and self._numbers.take(request)
        reason = "rekeyed" if self._numbers.came_in(request) else MENDED if is_late else None
        self._acks.succeeded(request, key, reason, records_deleted=0 if is_delete else None)

    def _forward(self, record: Record, key: bytes, request: CommandHeaders) -> None:
        """Send a command to the key's own partition."""
        self._placement.forward(record, key, request, is_mended=self._numbers.pass_on(request))

    def _deliver(self, record: Record, key: bytes, request: CommandHeaders) -> bool:
        """Check a message and send it on; False if its preprocessor finds that it deletes a record."""
        if len(key) > KEY_BYTES_MAX:
            raise RecordRejected("too_large", f"its key has {len(key)} bytes; at most {KEY_BYTES_MAX}")
        if request.remove is not None:
            raise RecordRejected("bad_header", "header remove: a topic without a SOW has no record to change")
        if request.expect_version >= 0:
            raise RecordRejected("bad_header", "header expect_version: a topic without a SOW has no versions")
        body, command = self._messages.read(record, request)
        if command == "sow_delete":
            return False
        if type(body) is not dict and (self._codec.can_delta or self._key.pointers or self._enrich):
            raise RecordRejected("not_an_object", f"the message is {kind_of(body)}; a record is an object")
        if self._enrich is not None:
            self._check_key(key, body, command)
            body = self._enrich(body, None, False, None)
        self._check_key(key, body, command)
        value, headers = self._written(record, command, body)
        if len(value) > self._settings.max_record_bytes:
            raise _too_large(len(value), self._settings)
        self._made_bytes += len(value)
        self._delta.append((key, value, [*headers, *self._more(record, request, command)]))
        return True

    def _check_key(self, key: bytes, body: Value, command: Command) -> None:
        if type(body) is dict:
            is_delta = command == "delta_publish"
            self._key.check(key, body, is_delta and self._settings.null_policy == "ignore")

    def _written(self, record: Record, command: Command, body: Value) -> tuple[bytes, Headers]:
        """The message with the headers that are a part of it: as it came, unless a plug-in changed it."""
        if self._preprocess is None and self._enrich is None:
            assert record.value is not None
            return record.value, [header for header in record.headers or () if header[0] in self._message_headers]
        try:
            return self._codec.encode_command(body, is_delta=command == "delta_publish")
        except TypeError as error:
            raise RecordRejected("schema_mismatch", str(error)) from None

    def _more(self, record: Record, request: CommandHeaders, command: Command) -> Headers:
        """The headers that travel on."""
        headers: Headers = []
        if command != self._settings.default_command:
            headers.append(command_header(command))
        if request.correlation_id:
            headers.append(correlation_id_header(request.correlation_id))
        if self._settings.source_header:
            headers.append(source_header(self._source, record.offset))
        return headers + request.passed


def _too_large(size: int, settings: TopicConfig) -> RecordRejected:
    return RecordRejected("too_large", f"{size} bytes; max_record_bytes is {settings.max_record_bytes}")
