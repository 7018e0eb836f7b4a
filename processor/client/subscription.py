"""A running subscription: an iterator of messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from processor.client.cut import Cut
from processor.client.envelope import Envelope
from processor.subscribe.message import Message
from processor.client.updates import Updates
from processor.record import Record


class Subscription:
    """Iterate over it for messages; close it, or leave its `with`, to end it.

    It belongs to one thread. What a slow reader has not taken stays in Kafka, save for what librdkafka fetches ahead
    (64 MB, `queued.max.messages.kbytes`).
    """

    def __init__(
        self,
        cut: Cut,
        updates: Updates,
        envelope: Envelope,
        *,
        loads: bool,
        tells_snapshot: bool,
        live: bool,
        timeout_s: float | None,
        on_close: Callable[[Subscription], None],
    ) -> None:
        """Made by the client.

        Args:
            cut: where past and future meet.
            updates: what is told of each record.
            envelope: makes the marks of the group.
            loads: whether the past is read.
            tells_snapshot: whether the past is told.
            live: whether the future is.
            timeout_s: see the attribute.
            on_close: called once, when it has ended.
        """
        self.timeout_s = timeout_s
        """The iteration ends when no message came for so long; None: it goes on until `close`."""
        self._cut = cut
        self._updates = updates
        self._envelope = envelope
        self._loads, self._tells_snapshot, self._live = loads, tells_snapshot, live
        self._on_close = on_close
        self._closed = False
        self._messages = self._run()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        if self._closed:
            raise StopIteration
        try:
            return next(self._messages)
        except BaseException:  # StopIteration too: what has ended needs no connection.
            self.close()
            raise

    def close(self) -> None:
        """End it; the iteration ends as well."""
        if not self._closed:
            self._closed = True
            self._cut.close()
            self._on_close(self)

    def _run(self) -> Iterator[Message]:
        if self._loads:
            yield from self._snapshot()
        if self._live:
            yield from self._follow()

    def _snapshot(self) -> Iterator[Message]:
        """The last record of every key before the cut, all of one moment."""
        if self._tells_snapshot:
            yield self._envelope.mark("group_begin")
        last: dict[bytes | None, Record] = {}
        for batch in self._cut.before():
            for record in batch:
                if record.value is None:
                    last.pop(record.key, None)
                else:
                    last[record.key] = record
        for record in last.values():
            if (message := self._updates.load(record)) is not None:
                yield message
        if self._tells_snapshot:
            yield self._envelope.mark("group_end")

    def _follow(self) -> Iterator[Message]:
        self._cut.follow()
        told_s = time.monotonic()
        while True:
            if self.timeout_s is None:
                records = self._cut.after()
            else:
                left_s = told_s + self.timeout_s - time.monotonic()
                if left_s <= 0:
                    return
                records = self._cut.after(left_s)
            for record in records:
                if (message := self._updates.update(record)) is not None:
                    yield message
                    told_s = time.monotonic()
