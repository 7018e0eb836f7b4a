"""A Kafka that does not answer: since when, for the log and a metric; when a client is replaced; who was refused.

librdkafka may wait for ever for a coordinator or controller that is dead, and reports wrong credentials as a timeout.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


log = logging.getLogger("sowstream.kafka")

_LINE_INTERVAL_S: Final = 60.0


class Outage:
    """The time since which no broker has answered a client of this process. Safe from any thread.

    Only requests that any broker may answer count: a coordinator or leader that is away is no outage.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Start with a reachable Kafka; `clock_s` is a monotonic clock."""
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._line_s = -_LINE_INTERVAL_S
        self._was_logged = False

    def unreachable(self, doing: str) -> None:
        """Record that no broker has answered; `doing` is the action that waits, such as "starting the producer x"."""
        with self._lock:
            now_s = self._clock_s()
            if self._since_s is None:
                self._since_s = now_s
            if now_s - self._line_s < _LINE_INTERVAL_S:
                return
            self._line_s, self._was_logged = now_s, True
            away_s = round(now_s - self._since_s, 1)
        log.warning("Kafka does not answer", extra={"doing": doing, "away_s": away_s})

    def reached(self) -> None:
        """Record that a broker has answered."""
        if self._since_s is None:  # The usual case, without the lock.
            return
        with self._lock:
            away_s, self._since_s = self.seconds, None
            was_logged, self._was_logged = self._was_logged, False
        if was_logged:
            log.info("Kafka answers again", extra={"away_s": round(away_s, 1)})

    @property
    def is_away(self) -> bool:
        """True if the last request that any broker may answer had no answer."""
        return self._since_s is not None

    def restart(self) -> None:
        """Begin again in a forked process, where another thread may have held the lock."""
        self._lock, self._since_s = threading.Lock(), None

    @property
    def seconds(self) -> float:
        """For how long Kafka has been away; 0 while it is reached."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock_s() - since_s


_process: Final = Outage()
"""The account of this process: all its clients use the same cluster."""

if hasattr(os, "register_at_fork"):  # Not on Windows, which has no fork.
    os.register_at_fork(after_in_child=_process.restart)

unreachable = _process.unreachable
reached = _process.reached


def is_away() -> bool:
    """Return whether Kafka is unreachable for this process; see `Outage.is_away`."""
    return _process.is_away


def seconds() -> float:
    """For how long Kafka has been unreachable for this process; 0 while it is reached."""
    return _process.seconds


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
        self.refresh = refresh
        """Asks any broker for leaders and coordinators, without waiting for the answer."""
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
            self.refresh()


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


_LOGIN: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    )
)


class Refusals:
    """The last refusal that a client received.

    librdkafka goes on trying, and its calls end with "timed out" as if no broker were there: only `error_cb` receives
    the reason. It is called while the client is polled.
    """

    def __init__(self) -> None:
        """Start without a refusal."""
        self.error: KafkaError | None = None

    def listening(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """The properties of a client, with the callback that collects refusals."""
        return {**properties, "error_cb": self._on_error}

    def _on_error(self, error: KafkaError) -> None:
        is_unverified = error.code() == KafkaError._SSL and "verify failed" in error.str()
        if error.code() in _LOGIN or is_unverified:
            self.error = error
