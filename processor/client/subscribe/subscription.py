"""A running subscription, to which others of its topic can be added, and a connection of several calls and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from processor.client.subscribe.frames import Frame, Table, arrow_table, pandas_frame
from processor.client.subscribe.stream import OnMessage, Stream
from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.client.feeds.many_feeds import FeedRequest, TopicFeed
    from processor.client.subscribe.stream import OnFetched
    from processor.record import Value


class Subscription(Stream):
    """Read it in one of three ways, and close it, or leave its `with` or `async with`, to end it.

    ========  ==================================  ===============================================================
    iterated  ``for message in subscription``     on the caller's thread, one thread at a time
    called    ``subscribe(..., on_message=f)``    on a thread of its own, which calls `f`, one message after the other
    awaited   ``async for message in ...``        Kafka is read on a thread of its own; messages come on the event loop
    ========  ==================================  ===============================================================

    Nothing is read from Kafka before the messages of earlier reads were taken, except with `conflation=auto`: records
    that a slow reader has not taken stay in Kafka, but for those that librdkafka fetches ahead (64 MB,
    `queued.max.messages.kbytes`).

    `add`, `remove` and `close` may be called from any thread. They wait for the turn at hand: a tenth of a second, or
    as long as a part of a snapshot takes.
    """

    def __init__(
        self,
        feed: TopicFeed[Any],
        understand: Callable[..., FeedRequest],
        *,
        timeout_s: float | None,
        on_message: OnMessage | None,
        on_close: Callable[[Stream], None],
        on_fetched: OnFetched | None = None,
        label: str = "",
    ) -> None:
        """Created by the client.

        Args:
            feed: the source of its messages.
            understand: parses the arguments of a subscription that is added later, to a request for this feed.
            timeout_s: see the attribute.
            on_message: called with each message; None: it is iterated over, or awaited.
            on_close: called once, when it has ended.
            on_fetched: called with the messages of each turn before they are delivered.
            label: the call and the topic, for `repr`.
        """
        self._label = label
        self._understand = understand
        self._topic_feed = feed
        super().__init__(feed, timeout_s=timeout_s, on_message=on_message, on_close=on_close, on_fetched=on_fetched)

    def __repr__(self) -> str:
        return f"<Subscription {self._label}{' closed' if self._is_closed else ''}>"

    @property
    def matching(self) -> int | None:
        """Of the window of its one subscription, the number of records that match, in it or not; None: not known."""
        return self._topic_feed.matching

    def add(
        self,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        *,
        sub_id: str | None = None,
        **arguments: object,
    ) -> str:
        """Add another subscription to the same stream: of the same topic and call, with its own snapshot if it has one.

        Subscriptions of different topics and calls share the stream of `Client.connect`.

        Its messages are mixed with the others, and `sub_ids` of each message names the subscriptions that it is for. A
        record for several subscriptions is sent once, in full if any of them asks for full records.

        Args:
            filter: selects records.
            options: as of the first one, except `bookmark`; `conflation=auto` does not make the stream read ahead.
            sub_id: its name; None: a number.
            arguments: options by name, as of the first one.

        Returns:
            Its name.

        Raises:
            ConfigurationError: the arguments are invalid, or the first one was opened without the state that it needs.
        """
        self.refuse_inherited()
        request = self._understand(filter, options, **arguments)
        with self._door, self._lock:
            self._refuse_closed()
            return self._topic_feed.add(request, sub_id)

    def to_arrow(self, *, key_column: str | None = None) -> Table:
        """Read the snapshot to its end, and return its records as a `pyarrow.Table` with a column for each field.

        Args:
            key_column: adds a first column of this name with the SOW keys.

        Raises:
            ConfigurationError: pyarrow is not installed, or a field has values of several types.
        """
        return arrow_table(self._snapshot(), key_column)

    def to_pandas(self, *, key_column: str | None = None) -> Frame:
        """The same as a `pandas.DataFrame`."""
        return pandas_frame(self._snapshot(), key_column)

    def _snapshot(self) -> list[tuple[str | None, Value]]:
        """The keys and records of the snapshot; a subscription without one has none before its first message."""
        rows: list[tuple[str | None, Value]] = []
        for message in self:
            match message.command:
                case "group_begin":
                    rows = []  # Perhaps again: a gateway was lost before the end.
                case "sow":
                    rows.append((message.sow_key, message.data))
                case "group_end":
                    break
                case _:
                    raise ConfigurationError("this subscription has no snapshot to make a table of; use sow()")
        return rows

    def remove(self, sub_id: str) -> None:
        """End one of several subscriptions; some messages that were read before may still arrive for it.

        Raises:
            ConfigurationError: there is no subscription of this name.
        """
        self.refuse_inherited()
        with self._door, self._lock:
            self._refuse_closed()
            self._topic_feed.remove(sub_id)

    def begin_again(self, reason: str) -> None:
        """Read the topic again: deliver a snapshot, then updates. Messages of earlier reads may still come first.

        Args:
            reason: the reason, for the log.

        Raises:
            PositionLost: the subscription has no snapshot.
        """
        self.refuse_inherited()
        with self._door, self._lock:
            self._refuse_closed()
            self._topic_feed.begin_again(reason)
