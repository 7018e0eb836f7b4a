"""Copies a topic so that each key changes at most once per interval (spec conflation.md)."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

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
from processor.record import OUR_HEADERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import BaseModel


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
    """Its parsed record, None after a delete."""
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
        body = None if record.value is None else self._context.codec.decode_own(record.value)
        if body is not None and type(body) is not dict:
            raise RecordRejected("not_an_object", "a SOW record is an object")
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending(record, self._context.now_ms + self._interval_ms, record)
            before = None if old is None else self._context.codec.decode_own(old.value)
        else:
            before = pending.body
        if body is not None and before is not None:
            touch(pending.touched, diff(before, body))
        pending.last, pending.version, pending.body = record, version, body
        pending.count += 1

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
            before = None if old is None else context.codec.decode_own(old.value)
            if pending.body is None:
                data, changed = None, self._key.only(before)
                changes[key] = None
            else:
                data = pending.last.value
                assert data is not None
                moved, removed = conflated_delta(before, pending.body, pending.touched)
                changed = self._key.with_delta(pending.body, moved)
                if removed:
                    delta_headers.append((Name.REMOVED, json.dumps(removed).encode()))
                elif not moved:
                    delta_headers.append((Name.EMPTY, b"true"))
                changes[key] = Stored(pending.version, data, 0, pending.last.offset)
            sow.append((key, data, headers))
            delta.append((key, context.codec.encode(changed), delta_headers))
            context.count("folded", pending.count)
        context.state.put_many(changes)
        context.forward_many("sow", sow)
        context.forward_many("delta", delta)

    def _headers(self, pending: _Pending, old: Stored | None) -> Headers:
        """What both outputs say of a delivery."""
        headers: Headers = [(Name.VERSION, b"%d" % pending.version)]
        if pending.body is None:
            headers.append((Name.KIND, b"delete"))
        elif old is None:
            headers.append((Name.KIND, b"insert"))
        if pending.count > 1:
            headers.append((Name.CONFLATED, b"%d" % pending.count))
        headers.append((Name.FIRST_TIMESTAMP, b"%d" % pending.first.timestamp_ms))
        headers.append((Name.SOURCE, self._source + b"%d" % pending.last.offset))
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
    if text is None or not text.isdigit():
        raise RecordRejected("bad_header", f"a SOW record carries its version; this one says {text!r}")
    return int(text)
