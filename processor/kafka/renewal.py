"""Decides when a client is given up: librdkafka may wait for ever for a coordinator or controller that is dead."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_PAUSE_S: Final = 5.0
_PAUSE_MAX_S: Final = 30.0


class Renewal:
    """Counts the tries of each request that Kafka left unanswered. Safe from any thread.

    After the second one in a row metadata is refreshed; after the third the client is replaced, and again after 5 s ...
    30 s for as long as the request stays unanswered. Requests are counted separately: a dead broker may have been the
    coordinator for one and not involved in another.
    """

    def __init__(
        self, refresh: Callable[[], None], renew: Callable[[], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Set the actions.

        Args:
            refresh: asks any broker for leaders and coordinators; must not wait for the answer.
            renew: replaces the client.
            clock_s: a monotonic clock, in seconds.
        """
        self._refresh = refresh
        self._renew = renew
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._unanswered: dict[str, int] = {}
        self._next_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self.count = 0
        """Number of times the client was replaced."""

    def answered(self, question: str) -> None:
        """Record that Kafka has answered, even with an error."""
        if question in self._unanswered:
            with self._lock:
                self._unanswered.pop(question, None)
                if not self._unanswered:
                    self._pause_s = _FIRST_PAUSE_S

    def unanswered(self, question: str) -> None:
        """Record that Kafka has not answered a try in time."""
        with self._lock:
            tries = self._unanswered[question] = self._unanswered.get(question, 0) + 1
            now_s = self._clock_s()
            is_due = tries > 2 and now_s >= self._next_s
            if is_due:
                self._next_s = now_s + self._pause_s
                self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
                self.count += 1
        if is_due:
            self._renew()
        elif tries >= 2:
            self._refresh()


class InBackground:
    """Runs one action on a thread of its own, unless it is running already."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        """Start nothing yet; `name` is the name of the thread."""
        self._name = name
        self._action = action
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Run the action now; the caller does not learn of its errors."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._action, name=self._name, daemon=True)
            self._thread.start()


def leave(client: object, close: Callable[[], object] | None = None) -> None:
    """Give up a client without waiting: closing one whose broker is dead may take long.

    The caller must keep no other reference: the last one to go destroys the client.
    """
    held = [client]
    del client

    def end() -> None:
        if close is not None:
            close()
        held.clear()

    threading.Thread(target=end, name="closing a client", daemon=True).start()
