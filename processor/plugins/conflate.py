"""Copies a topic so that each key changes at most once per interval (spec conflation.md)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from processor.api import (
    Context,
    Headers,
    Input,
    Name,
    Outgoing,
    Output,
    Processor,
    Record,
    RecordRejected,
    Stored,
    Value,
)
from processor.config import ConflatedConfig
from processor.merge import KeyFields, Touched, conflated_delta, diff, touch
from processor.plugins.key_alone import key_alone
from processor.plugins.removed import removed_header
from processor.record import OUR_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import BaseModel


_DIGITS_MAX: Final = 19
_NUMBER_END: Final = 2**63
_TEXT_BYTES_MAX: Final = 2**16 - 1


@dataclass(slots=True)
class _Pending:
    """The updates of one key that wait for the end of its interval; the latest counts."""

    first: Record
    """The update that began the interval."""
    due_ms: int
    """When the interval ends."""
    last: Record
    """The latest update."""
    version: int = 0
    """The version it carries."""
    body: Value = None
    """Its record, parsed if its message type can do deltas; None after a delete."""
    expires_at_ms: int = 0
    """When the record of the latest update expires; 0 is never."""
    count: int = 0
    """How many updates were folded."""
    touched: Touched = field(default_factory=dict)
    """The paths that moved, also those that came back."""


class Conflate(Processor):
    """Holds back the updates of one partition; its state is what it delivered.

    Nothing pending is written anywhere: the input position that may be committed never passes an update that is not
    delivered, so a successor reads it again. What was delivered it knows by the input offset that the conflated
    record carries as `source`: versions begin anew when a deleted key comes back.
    """

    settings_type = ConflatedConfig
    input: ClassVar[Input] = Input("sow", from_underlying=True)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"), Output("delta"))

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin with nothing pending."""
        assert isinstance(settings, ConflatedConfig)
        self._context = context
        self._interval_ms = int(settings.interval * 1000)
        self._source = f"{settings.underlying}.sow/{context.partition}/".encode()
        self._key = KeyFields(context.topic.key_fields)
        self._can_delta = context.codec.can_delta
        # In order of arrival, and so, all intervals being equally long, in order of their ends.
        self._pending: OrderedDict[bytes, _Pending] = OrderedDict()

    def process(self, records: Sequence[Record]) -> None:
        """Fold updates into what is pending; those marked `no_conflate` end their interval at once."""
        context = self._context
        delivered = context.state.get_many([record.key for record in records if record.key is not None])
        for record in records:
            try:
                key = record.key
                if key is None:
                    raise RecordRejected("missing_key", "a SOW record has a key")
                old = delivered[key]
                if old is not None and record.offset <= old.source_offset:
                    context.count("already_delivered")
                    continue
                self._fold(key, record, old)
                # Not as text: a publisher's header that is no UTF-8 must not keep its record from the copy.
                if record.headers and dict(record.headers).get(Name.NO_CONFLATE) == b"true":
                    self._deliver([(key, self._pending.pop(key))])
                    delivered[key] = context.state.get_many([key])[key]
            except RecordRejected as error:
                context.reject(record, error.reason, error.detail)
        self._hold()

    def punctuate(self, now_ms: int) -> None:
        """Deliver every key whose interval has ended."""
        pending = self._pending
        due: list[tuple[bytes, _Pending]] = []
        while pending:
            key = next(iter(pending))
            if pending[key].due_ms > now_ms:
                break
            due.append((key, pending.pop(key)))
        if due:
            self._deliver(due)
            self._hold()

    def _fold(self, key: bytes, record: Record, old: Stored | None) -> None:
        """One more update of a key: the first begins its interval, and none of the later ones restarts it."""
        version = _version(record)
        body = self._body(record.value)
        if body is not None and self._can_delta and type(body) is not dict:
            raise RecordRejected("not_an_object", "a SOW record is an object")
        expires_at_ms = _expires_at_ms(record)
        pending = self._pending.get(key)
        # First what may be refused: nothing half made waits to be delivered.
        delivered = None if old is None or pending is not None else self._body(old.value)
        before = delivered if pending is None else pending.body
        change = diff(before, body) if body is not None and before is not None and self._can_delta else None
        if pending is None:
            pending = self._pending[key] = _Pending(record, self._context.now_ms + self._interval_ms, record)
        if change is not None:
            touch(pending.touched, change)
        pending.last, pending.version, pending.body, pending.expires_at_ms = record, version, body, expires_at_ms
        pending.count += 1

    def _body(self, value: bytes | None) -> Value:
        """A record, parsed where its parts matter."""
        return value if value is None or not self._can_delta else self._context.codec.decode_own(value)

    def _deliver(self, due: Iterable[tuple[bytes, _Pending]]) -> None:
        """Send each key's last state and what moved."""
        context = self._context
        keys = dict(due)
        changes: dict[bytes, Stored | None] = {}
        sow: list[Outgoing] = []
        delta: list[Outgoing] = []
        for key, old in context.state.get_many(list(keys)).items():
            pending = keys[key]
            if pending.body is None and old is None:
                context.count("never_delivered")
                continue
            headers = self._headers(pending, old)
            delta_headers = headers + _base(old, pending)
            data = pending.last.value
            if data is None:
                assert old is not None
                told, more = key_alone(context.codec, self._key, old)
                changes[key] = None
            else:
                try:
                    told, more = self._told(pending, old, data)
                except RecordRejected as error:
                    # The updates were small enough one by one, together they are not.
                    context.reject(pending.last, error.reason, error.detail)
                    continue
                correlation_id = _correlation_id(pending.last)
                expires_at_ms = pending.expires_at_ms
                changes[key] = Stored(pending.version, data, expires_at_ms, pending.last.offset, correlation_id)
                if expires_at_ms:
                    headers = [*headers, (Name.EXPIRES_AT, b"%d" % expires_at_ms)]
            sow.append((key, data, headers))
            delta.append((key, told, delta_headers + more))
            context.count("folded", pending.count)
        context.state.put_many(changes)
        context.forward_many("sow", sow)
        context.forward_many("delta", delta)

    def _told(self, pending: _Pending, old: Stored | None, data: bytes) -> tuple[bytes, Headers]:
        """What a delivery tells on the delta topic, and the headers that go with it."""
        if not self._can_delta:
            return data, []
        codec = self._context.codec
        before = None if old is None else codec.decode_own(old.value)
        moved, removed = conflated_delta(before, pending.body, pending.touched)
        delta = self._key.with_delta(pending.body, moved)
        told, headers = codec.encode_delta(delta) if codec.uses_headers else (codec.encode(delta), [])
        if removed:
            headers.append(removed_header(removed))
        elif not moved:
            headers.append((Name.EMPTY, b"true"))
        return told, headers

    def _headers(self, pending: _Pending, old: Stored | None) -> Headers:
        """What both outputs say of a delivery."""
        headers: Headers = [(Name.VERSION, b"%d" % pending.version)]
        last = dict(pending.last.headers or ())
        if pending.body is None:
            headers.append((Name.KIND, b"expire" if last.get(Name.KIND) == b"expire" else b"delete"))
        elif old is None:
            headers.append((Name.KIND, b"insert"))
        if pending.count > 1:
            headers.append((Name.CONFLATED, b"%d" % pending.count))
        headers.append((Name.FIRST_TIMESTAMP, b"%d" % pending.first.timestamp_ms))
        headers.append((Name.SOURCE, self._source + b"%d" % pending.last.offset))
        if correlation_id := _correlation_id(pending.last):
            headers.append((Name.CORRELATION_ID, correlation_id))
        headers += [header for header in pending.last.headers or () if header[0] not in OUR_HEADERS]
        return headers

    def _hold(self) -> None:
        """The oldest pending update is where a successor must begin."""
        oldest = next(iter(self._pending.values()), None)
        self._context.hold(None if oldest is None else oldest.first.offset)


def _base(old: Stored | None, pending: _Pending) -> Headers:
    """The version that the delta applies to, where it is not the one before: updates were folded."""
    base = 0 if old is None else old.version
    return [] if base == pending.version - 1 else [(Name.DELTA_BASE, b"%d" % base)]


def _version(record: Record) -> int:
    """The version a SOW record carries."""
    text = dict(record.headers or ()).get(Name.VERSION)
    if text is None or not _is_number(text):
        raise RecordRejected("bad_header", f"a SOW record carries its version; this one says {text!r:.100}")
    return int(text)


def _expires_at_ms(record: Record) -> int:
    """When the record that a SOW record carries expires; 0 is never."""
    text = dict(record.headers or ()).get(Name.EXPIRES_AT) or b"0"
    if not _is_number(text):
        raise RecordRejected("bad_header", f"header {Name.EXPIRES_AT} of a SOW record is {text!r:.100}, no time")
    return int(text)


def _correlation_id(record: Record) -> bytes:
    """The one that a SOW record carries; one that no store holds is left out."""
    text = dict(record.headers or ()).get(Name.CORRELATION_ID) or b""
    return text if len(text) <= _TEXT_BYTES_MAX else b""


def _is_number(text: bytes) -> bool:
    """Whether it is one that a store holds: of 63 bits."""
    return text.isdigit() and len(text) <= _DIGITS_MAX and int(text) < _NUMBER_END
