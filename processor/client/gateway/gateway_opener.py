"""Opens the subscriptions of a client over a gateway."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from processor.client.gateway.answers import Token, message_of
from processor.client.gateway.gateway_feed import GatewayFeed, GatewayRequest
from processor.client.gateway.gateway_http import GatewayAddress, GatewayHttp, LinkTimes
from processor.client.gateway.link import GatewayLink
from processor.client.subscribe.arguments import key_text
from processor.client.subscribe.opener import SubscriptionOpener
from processor.filter import compile_filter
from processor.merge import KeyFields
from processor.subscriptions import Message, parse_options
from processor.subscriptions.request.subscribe_options import FORMS, SubscribeCall
from processor.values.key_text import is_respelled

if TYPE_CHECKING:
    from processor.record import Value


class GatewayOpener(SubscriptionOpener[GatewayRequest]):
    """Opens subscriptions over WebSockets, one for each feed; the gateway parses the records."""

    def __init__(self, url: str, token: Token, name: str) -> None:
        super().__init__()
        self._url, self._token, self._name = url, token, name
        self.times = LinkTimes()
        """The limits of connections that are opened from now on."""
        self._key_fields: dict[str, tuple[KeyFields, bool]] = {}
        self._lock = threading.Lock()

    def understand(
        self,
        name: str,
        call: SubscribeCall,
        filter: str | None,  # noqa: A002 - AMPS' name
        options: str | None,
        *,
        is_shared: bool = False,  # noqa: ARG002 - Nothing of a gateway needs a stream of its own.
        **arguments: Any,
    ) -> GatewayRequest:
        """Parse and check the arguments of a call: mistakes are found before the gateway is asked."""
        if filter is not None:
            compile_filter(filter)
        return GatewayRequest(name, filter, parse_options(options, **FORMS[call], **arguments), call)

    def feed(
        self,
        request: GatewayRequest,
        sub_id: str | None,
        *,
        delivers_meanwhile: bool = False,  # noqa: ARG002 - There is no kept view.
    ) -> GatewayFeed:
        """Open a WebSocket, and ask for a subscription on it."""
        feed = GatewayFeed(self._link(), is_named=sub_id is not None)
        try:
            feed.add(request, sub_id)
        except BaseException:
            feed.close(delivered=False)
            raise
        return feed

    def get(self, name: str, key: Value, *, min_version: int | None = None) -> Message | None:
        """The current record of a key, or None. Arguments and errors as `Client.get`."""
        if not isinstance(key, str) or is_respelled(key):
            if name not in self._key_fields:
                pointers, is_of_groups = self._http().key_fields(name)
                self._key_fields[name] = KeyFields(pointers), is_of_groups
            fields, is_of_groups = self._key_fields[name]
            key = key_text(name, key, fields, is_of_groups=is_of_groups)
        if min_version is not None:
            record = self._http().record(name, key, min_version)
            return None if record is None else message_of({"command": "sow", **record}, names_subscriptions=False)
        quoted = key.replace("\\", "\\\\").replace("'", "\\'")
        query = self.subscription(name, f"SOW_KEY() = '{quoted}'", "timestamp", "sow")
        with query:
            records = [message for message in query if message.command == "sow"]
        return records[0] if records else None

    def _link(self) -> GatewayLink:
        return GatewayLink(self._url, self._token, self._name, self.times)

    def _http(self) -> GatewayHttp:
        return GatewayHttp(GatewayAddress(self._url), self._token, self.times)
