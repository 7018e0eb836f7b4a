"""The base of subscriptions and queues: three ways to read them, one end, and an error that is raised once."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from processor.kafka.background_calls import BackgroundCalls
from processor.kafka.own_process import OfOneProcess

ReadMode: TypeAlias = Literal["iterated", "called", "awaited"]
"""The way a reader is read; the first call decides."""

WAIT_S = 0.1
"""Longest wait in one turn, so that Ctrl-C and `close` are noticed."""


class MessageReader(OfOneProcess, ABC):
    """Reads messages on the caller's thread, on one that calls back, or on one that works for an event loop."""

    def __init__(self, noun: str, *, timeout_s: float | None, on_close: Callable[[Any], None]) -> None:
        """Start no thread yet.

        Args:
            noun: the name of the object in errors and of its threads, such as "queue".
            timeout_s: it ends when no message came for so long; None: it goes on until `close`.
            on_close: called once with the reader, when it has ended.
        """
        OfOneProcess.__init__(self, noun)
        self.timeout_s = timeout_s
        """It ends when no message came for so long, once a snapshot is over; None: it goes on until `close`."""
        self._on_close = on_close
        self._lock = threading.RLock()
        self._is_closed = self._is_released = False
        self._mode: ReadMode | None = None
        self._failure: BaseException | None = None
        self._reading: BackgroundCalls | None = None
        self._fetching: Future[None] | None = None
        self._thread: threading.Thread | None = None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a reader that calls back has ended by itself.

        Args:
            timeout_s: the longest wait; None: without end.

        Returns:
            Whether it has ended.

        Raises:
            Exception: the exception of the callback or of reading; raised once.
        """
        self.refuse_inherited()
        if self._thread is None:
            raise RuntimeError(f"wait() is for a {self._noun} with on_message; iterate over this one")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._raise_failure()
        return True

    @abstractmethod
    def close(self) -> None:
        """End it: an iteration ends as well; a running callback is waited for.

        Raises:
            Exception: the exception of a callback, or of reading for it, that `wait` has not raised yet.
        """

    async def aclose(self) -> None:
        """As `close`, but from an event loop, which is not blocked."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.__exit__, kind, error, trace)

    @abstractmethod
    def _release(self, *, delivered: bool) -> None:
        """Close the source of the messages; arguments as `_end`."""

    def _start(self, call: Callable[[], None]) -> None:
        """Read on a thread of its own, which calls back."""
        self._set_mode("called")
        # A daemon thread: a reader that was never closed does not keep the program from ending.
        self._thread = threading.Thread(target=call, name=f"sowstream-{self._noun}", daemon=True)
        self._thread.start()

    def _submit(self, call: Callable[[], None]) -> Future[None]:
        """Make a call on the thread that works for an event loop."""
        if self._reading is None:
            self._reading = BackgroundCalls(f"sowstream-{self._noun}")
        return self._reading.submit(call)

    async def _fetched(self) -> None:
        """Wait for the call that fetches, and raise its error."""
        assert self._fetching is not None
        # A caller that is cancelled here leaves the messages to the next one: `wait` cancels nothing.
        await asyncio.wait([asyncio.wrap_future(self._fetching)])
        self._fetching = None
        self._raise_failure()

    def _end(self, *, delivered: bool) -> None:
        """Release all resources; from any thread, more than once.

        Args:
            delivered: whether all messages were taken, apart from those still in a buffer.
        """
        if self.is_inherited:
            return
        self._is_closed = True  # A waiting turn notices it.
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
            try:
                self._release(delivered=delivered)
            finally:
                if self._reading is not None:
                    self._reading.close()
                self._on_close(self)

    def _set_mode(self, mode: ReadMode) -> None:
        """Reject a second way of reading: the two would take each other's messages."""
        self.refuse_inherited()
        if self._mode is None:
            self._mode = mode
        elif self._mode != mode:
            raise RuntimeError(f"this {self._noun} is {self._mode} already; open another one")

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def close_all(readers: Iterable[MessageReader]) -> None:
    """End all readers.

    Raises:
        Exception: the first error, once all have ended.
    """
    first: Exception | None = None
    for reader in list(readers):
        try:
            reader.close()
        except Exception as error:  # noqa: BLE001 - The others are to be ended too.
            first = first or error
    if first is not None:
        raise first
