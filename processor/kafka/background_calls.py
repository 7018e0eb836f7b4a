"""Makes calls on a thread of its own, so that the caller goes on meanwhile and a call that hangs blocks no one else.

A program that ends waits for the threads of a `ThreadPoolExecutor`; it does not wait for this one.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    _Inbox: TypeAlias = SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]

_T = TypeVar("_T")


class BackgroundCalls:
    """Makes calls on one daemon thread, in the order in which they were submitted.

    The thread is kept for the next call: starting one takes several changes of the owner of Python's lock, and each may
    take milliseconds while another thread is busy.
    """

    def __init__(self, name: str) -> None:
        """Start nothing yet; `name` is the name of the thread."""
        self._name = name
        self._inbox: _Inbox | None = None
        self._thread: threading.Thread | None = None
        self._begun: Future[None] | None = None

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Queue a call; its future has the result of the call, or the error that it raised."""
        if self._inbox is None:
            self._inbox = SimpleQueue()
            self._thread = threading.Thread(target=_make_calls, args=[self._inbox], name=self._name, daemon=True)
            self._thread.start()
        ended: Future[_T] = Future()
        ended.set_running_or_notify_cancel()  # One that was cancelled would end the thread, and the calls behind it.
        self._inbox.put((call, ended))
        return ended

    def begin(self, call: Callable[[], None]) -> None:
        """Start a call that `wait` waits for; one at a time."""
        assert self._begun is None
        self._begun = self.submit(call)

    @property
    def is_busy(self) -> bool:
        """True if a call was started with `begin` and not yet taken with `wait`."""
        return self._begun is not None

    def wait(self, limit_s: float) -> None:
        """Wait for the end of the call, and raise the error that it raised.

        Raises:
            TimeoutError: it did not return in time. Its thread is abandoned, with everything that it works on.
        """
        assert self._begun is not None
        try:
            error = self._begun.exception(limit_s)
        except TimeoutError:
            self.close()
            raise TimeoutError(f"no answer within {limit_s:g} s") from None
        self._begun = None  # Not before: Ctrl-C ends the waiting, and the call goes on.
        if error is not None:
            try:
                raise error
            finally:
                del error  # Its traceback refers to this frame.

    def close(self) -> None:
        """Let the thread end after the calls that were submitted, without waiting for it."""
        inbox, self._inbox, self._begun = self._inbox, None, None
        if inbox is not None:
            inbox.put(None)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join()


def call_in_background(name: str, call: Callable[[], _T]) -> Future[_T]:
    """Make one call on a new thread of this name."""
    calls = BackgroundCalls(name)
    future = calls.submit(call)
    calls.close()
    return future


def _make_calls(inbox: _Inbox) -> None:
    while (item := inbox.get()) is not None:
        call, ended = item
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - It is raised in the thread that waits.
            ended.set_exception(error)
        else:
            ended.set_result(result)
            del result
        del item, call, ended  # The objects that they refer to are not kept until the next call.
