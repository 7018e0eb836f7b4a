"""A queue as one consumer sees it: messages are iterated over, called back or awaited; and figures for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.kafka.message_reader import WAIT_S, MessageReader
from processor.queues.lease_backlog import Backlog
from processor.queues.queue_message import QueueMessage

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


OnQueueMessage: TypeAlias = Callable[[QueueMessage], object]
"""Callback: called with each message; returning acknowledges it, an exception releases it."""


class Queue(MessageReader):
    """Read it in one of three ways, and close it, or leave its `with` or `async with`, to give back what is left.

    ========  ============================  =====================================================================
    iterated  ``for message in queue``      on the caller's thread, one thread at a time
    called    ``queue(..., on_message=f)``  on a thread of its own, which calls `f`, one message after the other
    awaited   ``async for message in …``    Kafka is read on a thread of its own; messages come on the event loop
    ========  ============================  =====================================================================

    Leaving the loop body normally, or returning from the callback, acknowledges the message; an exception releases it.
    A `break` acknowledges where the loop stands in the queue's own `with` and that is left normally; elsewhere Python
    does not tell it from an exception, and the message is released, unless it was acknowledged before.
    """

    def __init__(
        self,
        backlog: Backlog,
        *,
        timeout_s: float | None,
        on_message: OnQueueMessage | None,
        on_close: Callable[[Queue], None],
    ) -> None:
        """Created by the client.

        Args:
            backlog: the messages that are leased to this consumer.
            timeout_s: it ends when no message came for so long; None: it goes on until `close`.
            on_message: called with each message; None: it is iterated over, or awaited.
            on_close: called once, when it has ended.
        """
        super().__init__("queue", timeout_s=timeout_s, on_close=on_close)
        self._backlog = backlog
        self._current: QueueMessage | None = None  # In the hands of a loop body.
        self._next_message: QueueMessage | None = None  # For an event loop, which has not taken it.
        if on_message is not None:
            self._start(partial(self._call, on_message))

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._backlog.name

    @property
    def leased(self) -> int:
        """Number of messages that are leased to this consumer and have no outcome."""
        return self._backlog.leased

    @property
    def counts(self) -> Mapping[str, int]:
        """The messages of this consumer by fate; see `Backlog.counts`."""
        return dict(self._backlog.counts)

    def next_within(self, timeout_s: float | None) -> QueueMessage | None:
        """The next message of a queue that is iterated over; None if none came in time, or the queue has ended.

        Its outcome is the caller's to decide: `ack`, `release` or `reject`. While `max_backlog` messages have none, no
        others are fetched.

        Args:
            timeout_s: the longest wait; None: no limit.
        """
        self._set_mode("iterated")
        self._leave_current()
        return self._next(timeout_s)

    def close(self) -> None:
        """End it: messages without an outcome are released at once; a running callback is waited for.

        Raises:
            Exception: the exception of a callback, or of reading for it, that `wait` has not raised yet.
        """
        if self.is_inherited:
            return
        self._is_closed = True
        if self._thread is threading.current_thread():
            return  # A callback: its thread ends when it returns, and has acknowledged its message then.
        if self._thread is not None:
            self._thread.join()
        self._end(delivered=False)
        self._raise_failure()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_inherited:
            return
        if error is None:
            if self._current is not None:  # Its loop was left by `break` or `return`.
                self._current.settle_if_open("ack")
            self.close()
            return
        self._failure = None  # The caller must see the first error.
        self._is_closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._end(delivered=False)
        self._failure = None

    def __iter__(self) -> Iterator[QueueMessage]:
        self._set_mode("iterated")
        self._leave_current()
        while (message := self._next(self.timeout_s)) is not None:
            self._current = message
            # An exception in the body ends this generator here, and the message has no outcome: see `_leave_current`.
            yield message
            message.settle_if_open("ack")
            self._current = None
        self._end(delivered=False)

    async def __aiter__(self) -> AsyncIterator[QueueMessage]:
        self._set_mode("awaited")
        self._leave_current()
        while (message := await self._next_awaited()) is not None:
            self._current = message
            yield message
            message.settle_if_open("ack")
            self._current = None

    def _leave_current(self) -> None:
        """Release the message of an earlier loop whose body was left by an exception."""
        if self._current is not None:
            self._current.settle_if_open("release")
            self._current = None

    def _next(self, timeout_s: float | None) -> QueueMessage | None:
        """The next message; None if none came in time, or the queue was closed."""
        self.refuse_inherited()
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = WAIT_S if until_s is None else until_s - time.monotonic()
            with self._lock:
                if self._is_closed:
                    return None
                message = self._backlog.next(max(0.0, min(WAIT_S, left_s)))
            if message is not None or left_s <= 0:
                return message

    async def _next_awaited(self) -> QueueMessage | None:
        """As `_next`, on the other thread."""
        self.refuse_inherited()
        if self._fetching is None:
            if self._is_closed:
                return None
            self._fetching = self._submit(self._fetch)
        await self._fetched()
        message, self._next_message = self._next_message, None
        return message

    def _fetch(self) -> None:
        try:
            self._next_message = self._next(self.timeout_s)
            if self._next_message is None:
                self._end(delivered=False)
        except BaseException as error:  # noqa: BLE001 - It is raised on the event loop.
            self._failure = error
            self._end(delivered=False)

    def _call(self, on_message: OnQueueMessage) -> None:
        """Call back with each message until the end."""
        try:
            while (message := self._next(self.timeout_s)) is not None:
                try:
                    on_message(message)
                except BaseException:
                    message.settle_if_open("release")
                    raise
                message.settle_if_open("ack")
        except BaseException as error:  # noqa: BLE001 - It is raised by `wait` and `close`.
            self._failure = error
        finally:
            self._end(delivered=False)

    def _release(self, *, delivered: bool) -> None:  # noqa: ARG002 - The backlog knows its open messages.
        self._backlog.close()


FATES: Final = (
    "delivered", "delivered_again", "acknowledged", "released", "rejected", "dead", "lapsed", "lost",
)  # fmt: skip
"""The values of the label `fate`; `Backlog.counts` describes them."""


class QueueMetrics:
    """A collector of Prometheus with the figures of the given queues, each with the label of its name."""

    def __init__(self, *queues: Queue) -> None:
        """Collect from these queues, also when they have ended.

        Args:
            queues: consumers of this process, one of each queue.
        """
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        """The metrics now; called by the registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - with Prometheus only

        messages = CounterMetricFamily(
            "sowstream_queue_messages", "Messages of this consumer by fate", labels=("queue", "fate")
        )
        leased = GaugeMetricFamily(
            "sowstream_queue_leased_messages", "Messages leased to this consumer, without an outcome", labels=("queue",)
        )
        for queue in self._queues:
            counts = queue.counts
            for fate in FATES:
                messages.add_metric((queue.name, fate), counts.get(fate, 0))
            leased.add_metric((queue.name,), queue.leased)
        yield messages
        yield leased
