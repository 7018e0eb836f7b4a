"""A running subscription, to which others of its topic may be added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.client.subscribe.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.client.subscribe.source import Feed
    from processor.client.subscribe.stream import OnMessage
    from processor.subscriptions import SubscriptionSpec


class Subscription(Stream):
    """Read it in one of three ways, and close it, or leave its `with` or `async with`, to end it.

    ========  ==================================  ===============================================================
    iterated  ``for message in subscription``     on the caller's thread, one thread at a time
    called    ``subscribe(..., on_message=f)``    on a thread of its own, which calls `f`, one message after the other
    awaited   ``async for message in ...``        Kafka is read on a thread of its own; messages come on the event loop
    ========  ==================================  ===============================================================

    Nothing is read from Kafka before what was read is taken, save with `conflation=auto`: what a slow reader has not
    taken stays there, but for what librdkafka fetches ahead (64 MB, `queued.max.messages.kbytes`).

    `add`, `remove` and `close` may be called from any thread. They wait for the turn at hand: a tenth of a second, or
    as long as a part of a snapshot takes.
    """

    def __init__(
        self,
        feed: Feed,
        request: Callable[..., SubscriptionSpec],
        *,
        timeout_s: float | None,
        on_message: OnMessage | None,
        on_close: Callable[[Stream], None],
    ) -> None:
        """Made by the client.

        Args:
            feed: where its messages come from.
            request: understands a subscription that is to be added.
            timeout_s: see the attribute.
            on_message: called with each message; None: it is iterated over, or awaited.
            on_close: called once, when it has ended.
        """
        self._request = request
        self._topic_feed = feed
        super().__init__(feed, timeout_s=timeout_s, on_message=on_message, on_close=on_close)

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

        Its messages come among the others, and all say in `sub_ids` which subscriptions they are for; a record that
        several want is sent once, whole if any of them asks for whole records.

        Args:
            filter: which records.
            options: as of the first one, but for `bookmark`; `conflation=auto` of this one does not make it read ahead.
            sub_id: its name; None: a number.
            arguments: options by name, as of the first one.

        Returns:
            Its name.

        Raises:
            ConfigurationError: it cannot be meant, or the first one is read without what it needs.
        """
        request = self._request(filter, options, **arguments)
        with self._door, self._lock:
            self._refuse_closed()
            return self._topic_feed.add(request, sub_id)

    def remove(self, sub_id: str) -> None:
        """End one of several subscriptions; of what was read before, some messages for it may still come.

        Raises:
            ConfigurationError: there is none of this name.
        """
        with self._door, self._lock:
            self._refuse_closed()
            self._topic_feed.remove(sub_id)

    def begin_again(self, reason: str) -> None:
        """Read the topic again and deliver a snapshot, then updates; what was read before may still be delivered first.

        Args:
            reason: why, for the log.

        Raises:
            PositionLost: it has no snapshot.
        """
        with self._door, self._lock:
            self._refuse_closed()
            self._topic_feed.begin_again(reason)
