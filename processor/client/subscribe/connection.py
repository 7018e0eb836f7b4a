"""A connection: several subscriptions, of different calls and topics, in one stream of messages."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol, Unpack

from processor.client.feeds.many_feeds import ManyFeeds
from processor.client.subscribe.arguments import Form, SubscriptionArguments
from processor.client.subscribe.stream import OnMessage, Stream
from processor.errors import SowstreamError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from processor.client.feeds.contract import TopicFeed
    from processor.subscriptions import SubscriptionSpec, Topic


class OpenTopics(Protocol):
    """Opens the topics of a connection; implemented by the opener of the client's subscriptions."""

    def understand(
        self,
        name: str,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: str | None,
        form: Form,
        **arguments: Any,
    ) -> tuple[Topic, SubscriptionSpec]:
        """The topic and the checked request of a subscription; nothing is opened."""

    def feed(self, topic: Topic, request: SubscriptionSpec, form: Form, sub_id: str) -> TopicFeed:
        """Open a topic with its first subscription, in a way that any other can be added."""


class ClientConnection(Stream):
    """Several subscriptions in one stream; made by `Client.connect`, read and closed like a subscription.

    Each call returns the name of the new subscription, which its messages have in `sub_ids`. An update that matches
    several subscriptions of a topic is one message, a full record if any of them wants full records.

    The calls may be made from any thread, before and while messages are read. They wait for the turn at hand.
    """

    def __init__(
        self,
        topics: OpenTopics,
        *,
        timeout_s: float | None,
        on_message: OnMessage | None,
        on_close: Callable[[Stream], None],
    ) -> None:
        """Begin without subscriptions.

        Args:
            topics: opens the subscribed topics.
            timeout_s: it ends when no message came for so long; None: it goes on until `close`.
            on_message: called with each message, on a thread of its own; None: it is iterated over, or awaited.
            on_close: called once, when it has ended.
        """
        self._topics = topics
        self._feeds = ManyFeeds()
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
        return self._add(topic, filter, options, Form(snapshot=True, live=False, delta=False), **arguments)

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
        return self._add(topic, filter, options, Form(snapshot=False, live=True, delta=False), **arguments)

    def sow_and_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Subscribe to the state of the world, then to full records. Arguments as `subscribe`."""
        return self._add(topic, filter, options, Form(snapshot=True, live=True, delta=False), **arguments)

    def delta_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Subscribe to key fields and changed fields from now on. Arguments as `subscribe`."""
        return self._add(topic, filter, options, Form(snapshot=False, live=True, delta=True), **arguments)

    def sow_and_delta_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Subscribe to the state of the world, then to its changes. Arguments as `subscribe`."""
        return self._add(topic, filter, options, Form(snapshot=True, live=True, delta=True), **arguments)

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
        form: Form,
        *,
        sub_id: str | None = None,
        **arguments: Any,
    ) -> str:
        self.refuse_inherited()
        opened_topic, request = self._topics.understand(topic, filter, options, form, **arguments)
        with self._opening:  # Two at a time would open a topic twice.
            with self._door, self._lock:
                self._refuse_closed()
                name = self._feeds.name(sub_id)
                if self._feeds.has(topic):
                    self._feeds.add(topic, request, name)
                    return name
            # Kafka is asked for the ends of the topic; meanwhile the other topics are read.
            feed = self._topics.feed(opened_topic, request, form, name)
            with self._door, self._lock:
                if not self._is_closed:
                    self._feeds.open(topic, feed, request, name)
                    return name
            feed.close(delivered=True)
            raise SowstreamError("the connection was closed")
