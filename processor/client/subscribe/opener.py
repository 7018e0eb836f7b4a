"""The contract of the two openers of subscriptions, on Kafka and over a gateway, with the steps that both share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from processor.client.feeds.many_feeds import RequestT
from processor.client.subscribe.subscription import ClientConnection, Subscription

if TYPE_CHECKING:
    from processor.client.feeds.compact_records import SkippedRecords
    from processor.client.feeds.many_feeds import TopicFeed
    from processor.client.subscribe.stream import OnFetched, OnMessage, Stream
    from processor.record import Value
    from processor.subscriptions import Message
    from processor.subscriptions.request.subscribe_options import SubscribeCall


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
        **arguments: Any,
    ) -> RequestT:
        """Parse and check the arguments of a call; nothing is opened.

        Raises:
            ConfigurationError: no such topic, or an invalid filter or option.
        """

    @abstractmethod
    def feed(
        self, request: RequestT, sub_id: str | None, *, is_shared: bool = False, delivers_meanwhile: bool = False
    ) -> TopicFeed[RequestT]:
        """Open the feed of a request, and fix the boundary between its snapshot and its updates.

        Args:
            request: the first subscription.
            sub_id: its name; None: other subscriptions need not be possible.
            is_shared: whether it is one of several feeds of a connection.
            delivers_meanwhile: whether a kept view is delivered as it was kept, followed by the updates since then.

        Raises:
            ConfigurationError: the request is not for such a feed.
            BrokerUnavailable: no answer in time.
            Stop: another process uses the directory of the kept view.
        """

    @abstractmethod
    def get(self, name: str, key: Value, *, min_version: int | None = None) -> Message | None:
        """The current record of a key, or None. Arguments and errors as `Client.get`."""

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
        failed: BaseException | None = None
        for subscription in list(self._open):
            try:
                subscription.close()
            except Exception as error:  # noqa: BLE001 - The others are to be ended too.
                failed = failed or error
        if failed is not None:
            raise failed
