"""Calls on a thread of their own: the caller goes on meanwhile, and one that never comes back holds nobody up."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    _Outcome: TypeAlias = SimpleQueue[BaseException | None]
    _Inbox: TypeAlias = SimpleQueue[tuple[Callable[[], None], _Outcome] | None]


class CallThread:
    """Makes calls for one other thread, one at a time.

    The thread is kept for the next call: to start one takes several changes of who has Python's lock, and each may
    take milliseconds where the other thread is busy.
    """

    def __init__(self, name: str) -> None:
        """Start nothing; the name is the thread's."""
        self._name = name
        self._inbox: _Inbox | None = None
        self._outcome: _Outcome | None = None

    def begin(self, call: Callable[[], None]) -> None:
        """Have a call made; `wait` comes before the next one."""
        assert self._outcome is None
        if self._inbox is None:
            self._inbox = SimpleQueue()
            threading.Thread(target=_make_calls, args=[self._inbox], name=self._name, daemon=True).start()
        self._outcome = SimpleQueue()
        self._inbox.put((call, self._outcome))

    @property
    def is_busy(self) -> bool:
        """Whether a call was begun and its end not yet heard of."""
        return self._outcome is not None

    def wait(self, limit_s: float) -> None:
        """Wait for the call's end; what it raised is raised here.

        Raises:
            TimeoutError: it did not come back in time. Its thread is left behind, and whatever it works on with it.
        """
        assert self._outcome is not None
        try:
            error = self._outcome.get(timeout=limit_s)
        except Empty:
            self.close()
            raise TimeoutError(f"no answer within {limit_s:g} s") from None
        self._outcome = None  # Not before: Ctrl-C ends the waiting and not the call.
        if error is not None:
            raise error

    def close(self) -> None:
        """Let the thread end, when it comes back from its call; nobody waits for that any more."""
        inbox, self._inbox, self._outcome = self._inbox, None, None
        if inbox is not None:
            inbox.put(None)


def _make_calls(inbox: _Inbox) -> None:
    while (item := inbox.get()) is not None:
        call, outcome = item
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for it
            outcome.put(error)
        else:
            outcome.put(None)
        del item, call, outcome  # What they refer to is not to wait for the next call.
