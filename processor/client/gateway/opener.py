"""Opens the subscriptions of a client over a gateway."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from processor.client.gateway.answers import Token, message_of
from processor.client.gateway.gateway_feed import GatewayFeed, GatewayRequest
from processor.client.gateway.link import GatewayLink, LinkTimes
from processor.client.subscribe.arguments import key_text
from processor.client.subscribe.subscription import ClientConnection, Subscription
from processor.filter import compile_filter
from processor.merge import KeyFields
from processor.subscriptions import Message, parse_options
from processor.subscriptions.request.subscribe_options import FORMS, SubscribeCall
from processor.values.key_text import is_respelled

if TYPE_CHECKING:
    from processor.client.subscribe.stream import OnMessage, Stream
    from processor.record import Value


class GatewayOpener:
    """The contract of `SubscriptionOpener`, over WebSockets: one for each subscription that has a stream of its own."""

    skipped = None
    """Records that cannot be parsed are the gateway's matter."""

    def __init__(self, url: str, token: Token, name: str) -> None:
        self._url, self._token, self._name = url, token, name
        self.times = LinkTimes()
        """The limits of connections that are opened from now on."""
        self._open: set[Stream] = set()
        self._key_fields: dict[str, tuple[KeyFields, bool]] = {}
        self._lock = threading.Lock()

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
        delivers_meanwhile: bool = False,  # noqa: ARG002 - There is no kept view.
        **arguments: Any,
    ) -> Subscription:
        """Open a subscription. Arguments and errors as `SubscriptionOpener.subscription`."""

        def understand(filter: str | None, options: str | None, **arguments: Any) -> GatewayRequest:  # noqa: A002
            return _request(name, filter, options, call, **arguments)

        feed = GatewayFeed(self._link(), is_named=sub_id is not None)
        try:
            feed.add(understand(filter, options, **arguments), sub_id)
        except BaseException:
            feed.close(delivered=False)
            raise
        opened = Subscription(
            feed,  # type: ignore[arg-type]
            understand,  # type: ignore[arg-type]
            timeout_s=timeout_s,
            on_message=on_message,
            on_close=self._open.discard,
        )
        self._open.add(opened)
        return opened

    def connection(self, *, timeout_s: float | None = None, on_message: OnMessage | None = None) -> ClientConnection:
        """Open a connection without subscriptions."""
        opened = ClientConnection(self, timeout_s=timeout_s, on_message=on_message, on_close=self._open.discard)  # type: ignore[arg-type]
        self._open.add(opened)
        return opened

    def understand(
        self,
        name: str,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: str | None,
        call: SubscribeCall,
        **arguments: Any,
    ) -> tuple[str, GatewayRequest]:
        """The topic and the parsed request of a subscription on a connection."""
        return name, _request(name, filter, options, call, **arguments)

    def feed(self, _topic: str, request: GatewayRequest, sub_id: str) -> GatewayFeed:
        """Open a topic of a connection with its first subscription."""
        feed = GatewayFeed(self._link(), is_named=True)
        feed.add(request, sub_id)
        return feed

    def get(self, name: str, key: Value, *, min_version: int | None = None) -> Message | None:
        """The current record of a key, or None. Arguments and errors as `Client.get`."""
        if not isinstance(key, str) or is_respelled(key):
            if name not in self._key_fields:
                pointers, is_of_groups = self._link().key_fields(name)
                self._key_fields[name] = KeyFields(pointers), is_of_groups
            fields, is_of_groups = self._key_fields[name]
            key = key_text(name, key, fields, is_of_groups=is_of_groups)
        if min_version is not None:
            record = self._link().record(name, key, min_version)
            return None if record is None else message_of({"command": "sow", **record}, names_subscriptions=False)
        quoted = key.replace("\\", "\\\\").replace("'", "\\'")
        query = self.subscription(name, f"SOW_KEY() = '{quoted}'", "timestamp", "sow")
        with query:
            records = [message for message in query if message.command == "sow"]
        return records[0] if records else None

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in list(self._open):
            subscription.close()

    def _link(self) -> GatewayLink:
        return GatewayLink(self._url, self._token, self._name, self.times)


def _request(
    name: str,
    filter: str | None,  # noqa: A002 - AMPS' name
    options: str | None,
    call: SubscribeCall,
    **arguments: Any,
) -> GatewayRequest:
    """Parse the arguments of a call: mistakes are found before the gateway is asked."""
    if filter is not None:
        compile_filter(filter)
    parsed = parse_options(options, **FORMS[call], **arguments)
    return GatewayRequest(name, filter, parsed, call)
