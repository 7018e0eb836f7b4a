"""A running subscription, to which others of its topic can be added, and a connection of several calls and topics."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Unpack

from processor.client.feeds.many_feeds import ManyFeeds
from processor.client.subscribe.arguments import SubscriptionArguments
from processor.client.subscribe.frames import Frame, Table, arrow_table, pandas_frame
from processor.client.subscribe.stream import OnMessage, Stream
from processor.errors import ConfigurationError, SowstreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.client.feeds.many_feeds import Request, TopicFeed
    from processor.client.subscribe.opener import SubscriptionOpener
    from processor.client.subscribe.stream import OnFetched
    from processor.record import Value
    from processor.subscriptions.request.subscribe_options import SubscribeCall


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
        understand: Callable[..., Request],
        *,
        timeout_s: float | None,
        on_message: OnMessage | None,
        on_close: Callable[[Stream], None],
        on_fetched: OnFetched | None = None,
    ) -> None:
        """Created by the client.

        Args:
            feed: the source of its messages.
            understand: parses the arguments of a subscription that is added later, to a request for this feed.
            timeout_s: see the attribute.
            on_message: called with each message; None: it is iterated over, or awaited.
            on_close: called once, when it has ended.
            on_fetched: called with the messages of each turn before they are delivered.
        """
        self._understand = understand
        self._topic_feed = feed
        super().__init__(feed, timeout_s=timeout_s, on_message=on_message, on_close=on_close, on_fetched=on_fetched)

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


class ClientConnection(Stream):
    """Several subscriptions in one stream; made by `Client.connect`, read and closed like a subscription.

    Each call returns the name of the new subscription, which its messages have in `sub_ids`. An update that matches
    several subscriptions of a topic is one message, a full record if any of them wants full records.

    The calls may be made from any thread, before and while messages are read. They wait for the turn at hand.
    """

    def __init__(
        self,
        opener: SubscriptionOpener[Any],
        *,
        timeout_s: float | None,
        on_message: OnMessage | None,
        on_close: Callable[[Stream], None],
    ) -> None:
        """Begin without subscriptions.

        Args:
            opener: opens the subscribed topics.
            timeout_s: it ends when no message came for so long; None: it goes on until `close`.
            on_message: called with each message, on a thread of its own; None: it is iterated over, or awaited.
            on_close: called once, when it has ended.
        """
        self._opener = opener
        self._feeds = ManyFeeds[Any]()
        self._opening = threading.Lock()
        super().__init__(self._feeds, timeout_s=timeout_s, on_message=on_message, on_close=on_close)

    def sow(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Query the state of the world; the subscription ends with its `group_end`. Arguments as `Client.subscribe`."""
        return self._add(topic, filter, options, "sow", **arguments)

    def subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Subscribe to full records from now on. Arguments as `Client.subscribe`, without a bookmark.

        Returns:
            The name of the subscription.

        Raises:
            ConfigurationError: no such topic; an option that does not exist or makes no sense here; the name is taken.
            FilterError: an invalid filter, select list or order.
            BrokerUnavailable: no answer in time.
        """
        return self._add(topic, filter, options, "subscribe", **arguments)

    def sow_and_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Subscribe to the state of the world, then to full records. Arguments as `subscribe`."""
        return self._add(topic, filter, options, "sow_and_subscribe", **arguments)

    def delta_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Subscribe to key fields and changed fields from now on. Arguments as `subscribe`."""
        return self._add(topic, filter, options, "delta_subscribe", **arguments)

    def sow_and_delta_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Subscribe to the state of the world, then to its changes. Arguments as `subscribe`."""
        return self._add(topic, filter, options, "sow_and_delta_subscribe", **arguments)

    def remove(self, sub_id: str) -> None:
        """End one subscription; the others go on. Some messages that were read before may still arrive for it.

        Raises:
            ConfigurationError: there is no subscription of this name.
        """
        self.refuse_inherited()
        with self._opening, self._door, self._lock:
            self._refuse_closed()
            self._feeds.remove(sub_id)

    def _add(
        self,
        topic: str,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: str | None,
        call: SubscribeCall,
        *,
        sub_id: str | None = None,
        **arguments: Any,
    ) -> str:
        self.refuse_inherited()
        request = self._opener.understand(topic, call, filter, options, **arguments)
        with self._opening:  # Two at a time would open a topic twice.
            with self._door, self._lock:
                self._refuse_closed()
                name = self._feeds.name(sub_id)
                if self._feeds.has(topic):
                    self._feeds.add(topic, request, name)
                    return name
            # Kafka is asked for the ends of the topic; meanwhile the other topics are read.
            feed = self._opener.feed(request, name, is_shared=True)
            with self._door, self._lock:
                if not self._is_closed:
                    self._feeds.open(topic, feed, request, name)
                    return name
            feed.close(delivered=True)
            raise SowstreamError("the connection was closed")
