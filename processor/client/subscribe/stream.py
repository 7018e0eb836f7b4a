"""A stream of messages: iterated over, called back, or awaited; with spans of the messages, if tracing is on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from processor.client.feeds.many_feeds import MessageSource
from processor.errors import SowstreamError
from processor.kafka.message_reader import WAIT_S, MessageReader
from processor.subscriptions import Message
from processor.telemetry.tracing import spans_of

if TYPE_CHECKING:
    from processor.config.runtime import TelemetryConfig


OnMessage: TypeAlias = Callable[[Message], object]
"""Callback: called with each message."""

OnFetched: TypeAlias = Callable[[Sequence[Message]], object]
"""Callback: called with messages that were read together."""


class Stream(MessageReader):
    """A stream of messages of one or several subscriptions, filled by a feed.

    `close`, or leaving its `with` or `async with`, ends it. `close` may be called from any thread. It waits for the
    current turn: a tenth of a second, or as long as a part of a snapshot takes.
    """

    def __init__(
        self,
        feed: MessageSource,
        *,
        timeout_s: float | None,
        on_message: OnMessage | None,
        on_close: Callable[[Stream], None],
        on_fetched: OnFetched | None = None,
    ) -> None:
        """Created by the client.

        Args:
            feed: the source of its messages.
            timeout_s: see the attribute.
            on_message: called with each message; None: it is iterated over, or awaited.
            on_close: called once, when it has ended.
            on_fetched: called with the messages of each turn before they are delivered.
        """
        super().__init__("subscription", timeout_s=timeout_s, on_close=on_close)
        self._feed = feed
        self._on_fetched = on_fetched
        self._buffer: deque[Message] = deque()
        # A thread that releases a lock and takes it again does so before waiting threads wake up. So callers
        # first take the door, and the next turn waits for the door.
        self._door = threading.RLock()
        if on_message is not None:
            self._start(partial(self._call, on_message))

    @property
    def healed(self) -> int:
        """Number of records that were read again from the SOW topic because a delta was missing."""
        return self._feed.healed

    @property
    def unchecked(self) -> int:
        """Number of keys that were dropped because there were too many, so that their next delta was not checked."""
        return self._feed.unchecked

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._is_closed

    def next_within(self, timeout_s: float | None) -> Message | None:
        """The next message of a stream that is iterated over; None if none came in time, or the stream has ended.

        Args:
            timeout_s: the longest wait once the snapshot is read; 0 takes only messages that are there. None: no limit.

        Raises:
            SowstreamError: reading failed, and the stream has ended.
        """
        self._set_mode("iterated")
        if self._is_closed:
            return None
        if not self._buffer:
            self._fill_or_end(timeout_s)
        return self._buffer.popleft() if self._buffer else None

    def close(self) -> None:
        """End the stream: an iteration ends as well; a running callback is waited for.

        Raises:
            Exception: the exception of a callback, or of reading for it, that `wait` has not raised yet.
        """
        if self.is_inherited:
            return
        self._end(delivered=True)
        if self._thread is not threading.current_thread():
            self._join()
            self._raise_failure()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self.is_inherited:
            self.close()
            return
        self._failure = None  # The caller must see the first error.
        self._end(delivered=False)
        if self._thread is not threading.current_thread():
            self._join()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        self._set_mode("iterated")
        return self._next()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self._set_mode("awaited")
        while not self._buffer or self._is_closed:
            if self._fetching is None:
                self._fetching = self._submitted()
            await self._fetched()
        return self._buffer.popleft()

    def _next(self) -> Message:
        """The next message, on this thread.

        Raises:
            StopIteration: the stream has ended.
        """
        if self._is_closed:
            raise StopIteration
        if not self._buffer:
            self._fill_or_end(self.timeout_s)
            if not self._buffer:
                self._end(delivered=True)
                raise StopIteration
        return self._buffer.popleft()

    def _fill_or_end(self, timeout_s: float | None) -> None:
        """Fill the buffer; any error ends the stream, as an ended stream needs no connection."""
        try:
            self._fetch_some(timeout_s)
        except BaseException:  # Ctrl-C too.
            self._end(delivered=False)
            raise

    def _fetch_some(self, timeout_s: float | None) -> None:
        """Fill the buffer; it stays empty if nothing came in time, or nothing will come."""
        until_s: float | None = None
        wait_s = 0.0  # Messages that are there already are always taken.
        while True:
            with self._door:
                pass
            with self._lock:
                if self._is_closed:
                    return
                messages = self._feed.fetch(wait_s)
                if self._on_fetched is not None:
                    self._on_fetched(messages)
                self._buffer += messages
                if self._buffer or self._feed.is_over:
                    return
                is_live = self._feed.is_live
            wait_s = WAIT_S
            if timeout_s is not None:
                now_s = time.monotonic()
                if not is_live or until_s is None:
                    until_s = now_s + timeout_s  # The time of a snapshot that is still read does not count.
                if now_s >= until_s and is_live:
                    return
                wait_s = min(wait_s, max(0.0, until_s - now_s))

    def _submitted(self) -> Future[None]:
        """Fill the buffer on the other thread.

        Raises:
            StopAsyncIteration: the stream has ended.
        """
        with self._lock:
            if self._is_closed:
                raise StopAsyncIteration
            return self._submit(self._fill)

    def _fill(self) -> None:
        """Fill the buffer for an event loop; an error is kept, and raised there."""
        try:
            self._fetch_some(self.timeout_s)
            if not self._buffer:
                self._end(delivered=True)
        except BaseException as error:  # noqa: BLE001 - It is raised where the messages are taken.
            self._failure = error
            self._end(delivered=False)

    def _call(self, on_message: OnMessage) -> None:
        """Call back with each message until the end."""
        try:
            while True:
                try:
                    message = self._next()
                except StopIteration:
                    return
                on_message(message)
        except BaseException as error:  # noqa: BLE001 - It is raised by `wait` and `close`.
            self._failure = error
            self._end(delivered=False)

    def _release(self, *, delivered: bool) -> None:
        # The current turn may have filled the buffer.
        self._feed.close(delivered=delivered and not self._buffer)

    def _join(self) -> None:
        """Wait for the thread that reads, if there is one."""
        if self._thread is not None:
            self._thread.join()
        if self._reading is not None:
            self._reading.join()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise SowstreamError("the subscription is closed")


def received(settings: TelemetryConfig) -> OnFetched | None:
    """A callback that makes a span for each message with a trace; None: tracing is off.

    Raises:
        ConfigurationError: OpenTelemetry's packages are not installed.
    """
    spans = spans_of(settings)
    if spans is None:
        return None

    def on_fetched(messages: Sequence[Message]) -> None:
        for message in messages:
            if message.headers:
                spans.receive(message.topic, message.headers)

    return on_fetched
