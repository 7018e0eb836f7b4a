"""A stream of messages: iterated over, called back, or awaited."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from processor.client.subscribe.source import Source
from processor.errors import SowstreamError
from processor.kafka.background_calls import BackgroundCalls
from processor.subscriptions import Message

OnMessage: TypeAlias = Callable[[Message], object]
"""Called with each message."""

Form: TypeAlias = Literal["iterated", "called", "awaited"]
"""How a stream is read; the first reader decides."""

_WAIT_S: Final = 0.1  # Longest wait in one turn, so that Ctrl-C and `close` are noticed.


class Stream:
    """What a user reads: the messages of one or several subscriptions, from a feed.

    Closed by `close`, or by leaving its `with` or `async with`. `close` may be called from any thread. It waits for the
    turn at hand: a tenth of a second, or as long as a part of a snapshot takes.
    """

    def __init__(
        self,
        feed: Source,
        *,
        timeout_s: float | None,
        on_message: OnMessage | None,
        on_close: Callable[[Stream], None],
    ) -> None:
        """Made by the client.

        Args:
            feed: where its messages come from.
            timeout_s: see the attribute.
            on_message: called with each message; None: it is iterated over, or awaited.
            on_close: called once, when it has ended.
        """
        self.timeout_s = timeout_s
        """It ends when no message came for so long, once the snapshot is over; None: it goes on until `close`."""
        self._feed = feed
        self._on_close = on_close
        self._buffer: deque[Message] = deque()
        self._lock = threading.RLock()
        # Whoever lets go of a lock and takes it again does so before those who wait have woken up. So they wait in the
        # door, and the next turn waits behind them.
        self._door = threading.RLock()
        self._is_closed = False
        self._has_let_go = False
        self._form: Form | None = None
        self._failure: BaseException | None = None
        self._reading: BackgroundCalls | None = None
        self._fetching: Future[None] | None = None
        self._thread: threading.Thread | None = None
        if on_message is not None:
            self._is("called")
            # A daemon: a program that ends is not kept by a subscription that nobody closed.
            self._thread = threading.Thread(
                target=self._call, args=(on_message,), name="sowstream-subscription", daemon=True
            )
            self._thread.start()

    @property
    def healed(self) -> int:
        """How many times a record was read again from the SOW topic because a delta of it was missing."""
        return self._feed.healed

    @property
    def unchecked(self) -> int:
        """How many times a key was forgotten because there were too many, so that its next delta was not checked."""
        return self._feed.unchecked

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a stream that calls back has ended by itself.

        Args:
            timeout_s: the longest wait; None: without end.

        Returns:
            Whether it has ended.

        Raises:
            Exception: what the callback or the reading raised; once.
        """
        if self._thread is None:
            raise RuntimeError("wait() is for subscriptions with on_message; iterate over this one")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._raise_failure()
        return True

    def next_within(self, timeout_s: float | None) -> Message | None:
        """The next message of a stream that is iterated over; None if none came in time, or it has ended.

        Args:
            timeout_s: how long to wait once the past is read; at 0 what is there is taken. None: without end.

        Raises:
            SowstreamError: it cannot go on, and has ended.
        """
        self._is("iterated")
        if self._is_closed:
            return None
        if not self._buffer:
            self._guarded(timeout_s)
        return self._buffer.popleft() if self._buffer else None

    def close(self) -> None:
        """End it: an iteration ends as well, and a callback that runs is waited for.

        Raises:
            Exception: what a callback, or reading for it, raised and `wait` has not told yet.
        """
        self._end(told=True)
        if self._thread is not threading.current_thread():
            self._join()
            self._raise_failure()

    async def aclose(self) -> None:
        """As `close`, from an event loop, which goes on meanwhile."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        self._failure = None  # What went wrong first is what the caller must hear of.
        self._end(told=False)
        if self._thread is not threading.current_thread():
            self._join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.__exit__, kind, error, trace)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        self._is("iterated")
        return self._next()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self._is("awaited")
        while not self._buffer or self._is_closed:
            if self._fetching is None:
                self._fetching = self._submitted()
            # Whoever is cancelled here leaves what was read to the next one: `wait` cancels nothing.
            await asyncio.wait([asyncio.wrap_future(self._fetching)])
            self._fetching = None
            self._raise_failure()
        return self._buffer.popleft()

    def _next(self) -> Message:
        """The next message, on this thread; the end is StopIteration."""
        if self._is_closed:
            raise StopIteration
        if not self._buffer:
            self._guarded(self.timeout_s)
            if not self._buffer:
                self._end(told=True)
                raise StopIteration
        return self._buffer.popleft()

    def _guarded(self, timeout_s: float | None) -> None:
        """Fill the buffer; whatever goes wrong ends the subscription: what has ended needs no connection."""
        try:
            self._fetch_some(timeout_s)
        except BaseException:  # Ctrl-C too.
            self._end(told=False)
            raise

    def _fetch_some(self, timeout_s: float | None) -> None:
        """Fill the buffer; it stays empty where nothing came in time, or nothing will come."""
        until_s: float | None = None
        wait_s = 0.0  # What is there is to be had at any rate.
        while True:
            with self._door:
                pass
            with self._lock:
                if self._is_closed:
                    return
                self._buffer += self._feed.fetch(wait_s)
                if self._buffer or self._feed.is_over:
                    return
                is_live = self._feed.is_live
            wait_s = _WAIT_S
            if timeout_s is not None:
                now_s = time.monotonic()
                if not is_live or until_s is None:
                    until_s = now_s + timeout_s  # A past that is still read is no silence.
                if now_s >= until_s and is_live:
                    return
                wait_s = min(wait_s, max(0.0, until_s - now_s))

    def _submitted(self) -> Future[None]:
        """Let the other thread fill the buffer.

        Raises:
            StopAsyncIteration: it has ended.
        """
        with self._lock:
            if self._is_closed:
                raise StopAsyncIteration
            if self._reading is None:
                self._reading = BackgroundCalls("sowstream-subscription")
            return self._reading.submit(self._fill)

    def _fill(self) -> None:
        """Fill the buffer for an event loop; what goes wrong is kept for it."""
        try:
            self._fetch_some(self.timeout_s)
            if not self._buffer:
                self._end(told=True)
        except BaseException as error:  # noqa: BLE001 - It is raised where the messages go.
            self._failure = error
            self._end(told=False)

    def _call(self, on_message: OnMessage) -> None:
        """Hand over messages until the end."""
        try:
            while True:
                try:
                    message = self._next()
                except StopIteration:
                    return
                on_message(message)
        except BaseException as error:  # noqa: BLE001 - It is raised by whoever waits for the end.
            self._failure = error
            self._end(told=False)

    def _end(self, *, told: bool) -> None:
        """Let go of everything; from any thread, more than once.

        Args:
            told: whether all that was read was taken, but for what is still in the buffer.
        """
        self._is_closed = True  # A turn that waits for more hears it.
        with self._lock:
            if self._has_let_go:
                return
            self._has_let_go = True
            try:
                # The turn that was at hand may have filled the buffer.
                self._feed.close(told=told and not self._buffer)
            finally:
                if self._reading is not None:
                    self._reading.close()
                self._on_close(self)

    def _join(self) -> None:
        """Wait for the thread that reads, if there is one."""
        if self._thread is not None:
            self._thread.join()
        if self._reading is not None:
            self._reading.join()

    def _is(self, form: Form) -> None:
        """Hold to one way of reading: two would take each other's messages."""
        if self._form is None:
            self._form = form
        elif self._form != form:
            raise RuntimeError(f"this subscription is {self._form} already; open another one")

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise SowstreamError("the subscription is closed")

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
