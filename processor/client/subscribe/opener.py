"""The contract of the two openers of subscriptions, on Kafka and over a gateway; and connections of several of them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Unpack

from processor.client.feeds.many_feeds import ManyFeeds, RequestT
from processor.client.subscribe.arguments import SubscriptionArguments, naming
from processor.client.subscribe.stream import Stream
from processor.client.subscribe.subscription import Subscription
from processor.errors import ConfigurationError, RecordRejected, SowstreamError
from processor.kafka.message_reader import close_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.client.feeds.compact_records import SkippedRecords
    from processor.client.feeds.many_feeds import TopicFeed
    from processor.client.subscribe.stream import OnFetched, OnMessage
    from processor.record import Value
    from processor.subscriptions import Message
    from processor.subscriptions.request.subscribe_options import SubscribeCall


class TopicInfo(NamedTuple):
    """A topic that a client may use."""

    name: str
    """Its configured name."""
    key: tuple[str, ...]
    """The JSON Pointers of its key fields; empty where keys are explicit."""
    message_type: str
    """The format of its records, such as `json`."""
    kind: Literal["topic", "conflated", "view", "processor"] | None
    """The section of the settings that has it; None: a gateway does not say it."""


class SubscriptionOpener(ABC, Generic[RequestT]):
    """Opens the subscriptions of a client, and closes them: `KafkaOpener`, or `GatewayOpener` over a gateway.

    A call is parsed to a request, for which a feed is opened, which a `Subscription` or a `ClientConnection` reads.
    """

    skipped: dict[str, SkippedRecords] | None = None
    """The records that were left out, by topic; None: a record that cannot be parsed ends a subscription."""

    def __init__(self, on_fetched: OnFetched | None = None) -> None:
        self._on_fetched = on_fetched
        self._open: set[Stream] = set()

    @abstractmethod
    def understand(
        self,
        name: str,
        call: SubscribeCall,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: str | None,
        *,
        is_shared: bool = False,
        **arguments: Any,
    ) -> RequestT:
        """Parse and check the arguments of a call; nothing is opened.

        Args:
            name: the topic.
            call: the call.
            filter: selects records.
            options: as `parse_options`, with `arguments`.
            is_shared: whether its messages share the stream of a connection.
            arguments: options by name.

        Raises:
            ConfigurationError: no such topic, or an invalid filter or option.
        """

    @abstractmethod
    def feed(self, request: RequestT, sub_id: str | None, *, delivers_meanwhile: bool = False) -> TopicFeed[RequestT]:
        """Open the feed of a request, and fix the boundary between its snapshot and its updates.

        Args:
            request: the first subscription.
            sub_id: its name; None: other subscriptions need not be possible.
            delivers_meanwhile: whether a kept view is delivered as it was kept, followed by the updates since then.

        Raises:
            ConfigurationError: the request is not for such a feed.
            BrokerUnavailable: no answer in time.
            Stop: another process uses the directory of the kept view.
        """

    @abstractmethod
    def get(self, name: str, key: Value, *, min_version: int | None = None) -> Message | None:
        """The current record of a key, or None. Arguments and errors as `Client.get`."""

    @abstractmethod
    def topics(self) -> list[TopicInfo]:
        """The topics that the client may use. Errors as `Client.topics`."""

    @abstractmethod
    def key_text(self, name: str, key: Value) -> str:
        """The SOW key of a record as the topic's workers write it, of its text or of the values of its key fields.

        Args:
            name: the topic.
            key: as `Client.get`.

        Raises:
            RecordRejected: `missing_key`: it is no key of the topic.
            ConfigurationError: no such topic.
            BrokerUnavailable: the gateway is to be asked for the key fields, and does not answer.
        """

    def key_to_read(self, name: str, key: Value) -> str:
        """As `key_text`, for a call that reads a record.

        Raises:
            ConfigurationError: no such topic, or no key of it.
        """
        try:
            return self.key_text(name, key)
        except RecordRejected as error:
            raise ConfigurationError(error.detail) from None

    def subscription(
        self,
        name: str,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: str | None,
        call: SubscribeCall,
        *,
        timeout_s: float | None = None,
        on_message: OnMessage | None = None,
        sub_id: str | None = None,
        delivers_meanwhile: bool = False,
        **arguments: Any,
    ) -> Subscription:
        """Open a subscription with a stream of its own.

        Args:
            name: a SOW topic or a conflated one.
            filter: selects records.
            options: as `parse_options`, with `arguments`.
            call: the call.
            timeout_s: the subscription ends when no message came for so long.
            on_message: called with each message, on a thread of its own.
            sub_id: its name.
            delivers_meanwhile: whether a kept view is delivered as it was kept, followed by the updates since then.
            arguments: options by name.

        Raises:
            ConfigurationError: no such topic, or an invalid filter or option.
            BrokerUnavailable: no answer in time.
            Stop: another process uses the directory of the kept view.
        """
        understand = partial(self.understand, name, call)
        opened = Subscription(
            self.feed(understand(filter, options, **arguments), sub_id, delivers_meanwhile=delivers_meanwhile),
            understand,
            timeout_s=timeout_s,
            on_message=on_message,
            on_close=self._open.discard,
            on_fetched=self._on_fetched,
            label=f"{call} {name!r}",
        )
        self._open.add(opened)
        return opened

    def connection(self, *, timeout_s: float | None = None, on_message: OnMessage | None = None) -> ClientConnection:
        """Open a connection without subscriptions.

        Args:
            timeout_s: it ends when it has delivered nothing for so long.
            on_message: called with each message, on a thread of its own.
        """
        opened = ClientConnection(self, timeout_s=timeout_s, on_message=on_message, on_close=self._open.discard)
        self._open.add(opened)
        return opened

    def close(self) -> None:
        """End all subscriptions.

        Raises:
            Exception: the first error, once all have ended.
        """
        close_all(self._open)


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

    @naming(SubscriptionArguments)
    def sow(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Query the state of the world; the subscription ends with its `group_end`. Arguments as `Client.subscribe`."""
        return self._add(topic, filter, options, "sow", **arguments)

    @naming(SubscriptionArguments)
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

    @naming(SubscriptionArguments)
    def sow_and_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Subscribe to the state of the world, then to full records. Arguments as `subscribe`."""
        return self._add(topic, filter, options, "sow_and_subscribe", **arguments)

    @naming(SubscriptionArguments)
    def delta_subscribe(
        self,
        topic: str,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        options: str | None = None,
        **arguments: Unpack[SubscriptionArguments],
    ) -> str:
        """Subscribe to key fields and changed fields from now on. Arguments as `subscribe`."""
        return self._add(topic, filter, options, "delta_subscribe", **arguments)

    @naming(SubscriptionArguments)
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
        request = self._opener.understand(topic, call, filter, options, is_shared=True, **arguments)
        with self._opening:  # Two at a time would open a topic twice.
            with self._door, self._lock:
                self._refuse_closed()
                name = self._feeds.name(sub_id)
                if self._feeds.has(topic):
                    self._feeds.add(topic, request, name)
                    return name
            # Kafka is asked for the ends of the topic; meanwhile the other topics are read.
            feed = self._opener.feed(request, name)
            with self._door, self._lock:
                if not self._is_closed:
                    self._feeds.open(topic, feed, request, name)
                    return name
            feed.close(delivered=True)
            raise SowstreamError("the connection was closed")
