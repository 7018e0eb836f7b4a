"""Opens the subscriptions of a client over a gateway, whose messages are resumed after a lost connection."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from processor.client.feeds.many_feeds import TopicFeed
from processor.client.gateway.answers import LATER, Token, error_of, message_of
from processor.client.gateway.gateway_http import GatewayAddress, GatewayHttp, LinkTimes
from processor.client.gateway.link import GatewayLink
from processor.client.subscribe.arguments import key_text
from processor.client.subscribe.opener import SubscriptionOpener, TopicInfo
from processor.errors import BrokerUnavailable, ConfigurationError, SowstreamError
from processor.filter import compile_filter
from processor.merge import KeyFields
from processor.subscriptions import Message, parse_options
from processor.subscriptions.request.subscribe_options import FORMS, Options, SubscribeCall
from processor.values.key_text import is_respelled

if TYPE_CHECKING:
    from processor.record import Value

log = structlog.stdlib.get_logger("sowstream.client")

_PATIENCE_MAX: Final = 16


class GatewayRequest:
    """A subscription as it was asked for."""

    def __init__(self, topic: str, filter: str | None, options: Options, call: SubscribeCall) -> None:  # noqa: A002 - AMPS' name
        if options.bookmark is not None:
            raise ConfigurationError("option 'bookmark' replays from Kafka; a gateway resumes by itself")
        defaults = Options._field_defaults
        self.op: Final = call
        """The request."""
        self.topic: Final = topic
        """The topic."""
        self.filter: Final = filter
        """Selects records."""
        self.live: Final = FORMS[call]["live"]
        """True if updates follow."""
        self.options: Final[dict[str, Any]] = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in options._asdict().items()
            if value != defaults[name]
        }
        """The options that differ from their defaults."""

    def fields(self, resume: str | None) -> dict[str, Any]:
        """The fields of the request."""
        return {"topic": self.topic, "filter": self.filter, "options": self.options, "resume": resume}


class _Served:
    """A subscription, and where it stands with the gateway."""

    __slots__ = (
        "again_s",
        "attempts",
        "bookmark",
        "is_accepted",
        "is_catching_up",
        "matching",
        "name",
        "request",
        "until_s",
    )

    def __init__(self, name: str, request: GatewayRequest) -> None:
        self.name = name
        self.request = request
        self.bookmark: str | None = None
        self.matching: int | None = None
        self.attempts = 0
        self.again_s = 0.0
        self.lose()

    def lose(self) -> None:
        """The gateway does not serve it any more."""
        self.is_accepted, self.is_catching_up = False, False
        self.until_s: float | None = None
        """The time by which it is to be answered; None: it is not asked for."""

    def not_now(self, wait_s: float) -> None:
        """It is asked for again after a wait."""
        self.lose()
        self.attempts += 1
        self.again_s = time.monotonic() + wait_s

    def accept(self) -> None:
        """The gateway serves it."""
        self.is_accepted, self.until_s, self.attempts = True, None, 0
        self.is_catching_up = self.bookmark is None and self.request.op.startswith("sow")


class GatewayFeed(TopicFeed[GatewayRequest]):
    """A feed over one WebSocket, for subscriptions of any topic.

    asked for ──▶ accepted ──▶ ended, with its error; "not now", a lost connection and no answer lead back.
    """

    def __init__(self, link: GatewayLink, *, is_named: bool) -> None:
        """Begin without subscriptions.

        Args:
            link: the connection, not open yet.
            is_named: whether messages name their subscriptions.
        """
        self._link = link
        self._is_named = is_named
        self._served: dict[str, _Served] = {}
        self._asked: dict[str, _Served] = {}  # By the ids of the requests, which are never used again.
        self._waiting: list[Message] = []
        self._failure: SowstreamError | None = None
        self._patience = 1
        self._numbered = 0

    @property
    def is_live(self) -> bool:
        """True if the snapshots were delivered, and every subscription follows its topic now."""
        if self._waiting or self._failure is not None or not self._link.is_alive:
            return False
        return all(one.is_accepted and not one.is_catching_up for one in self._served.values())

    @property
    def is_over(self) -> bool:
        """True if no more messages will come."""
        return not self._served and not self._waiting and self._failure is None

    @property
    def matching(self) -> int | None:
        """Of the window of its one subscription, the number of records that match; asked on any thread."""
        served = list(self._served.values())
        return served[0].matching if len(served) == 1 else None

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn.

        Raises:
            SowstreamError: a subscription has ended, or the gateway refuses the client.
        """
        if not self._waiting:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self._turn(wait_s)
        waiting, self._waiting = self._waiting, []
        return waiting

    def add(self, request: GatewayRequest, sub_id: str | None) -> str:
        """Add a subscription; returns its name in messages. What is not there yet is asked for again by `fetch`.

        Raises:
            SowstreamError: it is refused.
            BrokerUnavailable: the gateway does not answer at all.
        """
        if sub_id in self._served:
            raise ConfigurationError(f"there is a subscription {sub_id!r} already")
        while sub_id is None or sub_id in self._served:
            self._numbered += 1
            sub_id = str(self._numbered)
        if not self._link.is_open:
            self._forget()
            self._link.open()
        self._is_named = self._is_named or bool(self._served)
        added = self._served[sub_id] = _Served(sub_id, request)
        try:
            while self._served.get(sub_id) is added and not added.is_accepted and not added.attempts:
                self._turn(self._link.times.answer_s)
                if not self._link.is_open:
                    break  # `fetch` connects again, and asks again.
        except BaseException:
            self._served.pop(sub_id, None)
            raise
        if self._failure is not None and self._served.get(sub_id) is not added:
            failure, self._failure = self._failure, None
            raise failure
        return sub_id

    def remove(self, sub_id: str) -> None:
        """End one subscription; a query, and one that failed, has ended by itself."""
        self._served.pop(sub_id, None)
        for request_id in [request_id for request_id, one in self._asked.items() if one.name == sub_id]:
            del self._asked[request_id]
            try:
                self._link.send("unsubscribe", {"sub": request_id})
            except BrokerUnavailable:
                self._lose()  # With the connection it has ended.

    def begin_again(self, reason: str) -> None:  # noqa: ARG002 - The contract has it.
        """Read everything again from new snapshots."""
        for one in self._served.values():
            one.bookmark = None
        self._lose()

    def close(self, *, delivered: bool) -> None:  # noqa: ARG002 - As above.
        """End it."""
        self._served.clear()
        self._link.drop()

    def _turn(self, wait_s: float) -> None:
        """Connect, ask for what is not served, and take the next frame; a lost connection is for the next turn."""
        try:
            if not self._link.is_open:
                self._forget()
                if not self._link.reopen(wait_s):
                    return
            self._ask()
            for fields in self._link.receive(min(wait_s, self._link.times.silence_s)) or ():
                self._take(fields)
        except BrokerUnavailable:
            self._lose()

    def _ask(self) -> None:
        """Ask for what the gateway does not serve."""
        now_s = time.monotonic()
        for one in self._served.values():
            if one.until_s is not None and now_s > one.until_s:
                self._patience = min(self._patience * 2, _PATIENCE_MAX)
                log.warning("a request was not answered in time, and is sent again", topic=one.request.topic)
                raise BrokerUnavailable("a request was not answered in time")
            if one.is_accepted or one.until_s is not None or now_s < one.again_s:
                continue
            one.until_s = now_s + self._link.times.answer_s * self._patience
            request_id = self._link.number()
            self._asked[request_id] = one
            self._link.send(one.request.op, one.request.fields(one.bookmark), request_id)

    def _lose(self) -> None:
        """End the connection, or the attempt to connect."""
        self._link.drop()
        self._forget()

    def _forget(self) -> None:
        """Without a connection the gateway serves nothing."""
        self._asked.clear()
        for one in self._served.values():
            one.lose()

    def _take(self, fields: dict[str, Any]) -> None:
        """Take one message of a frame."""
        op = fields.get("op")
        if op == "ack":
            self._answer(str(fields.get("id")), fields, is_success=fields["status"] == "success")
        elif op == "ended":
            self._answer(str(fields.get("sub")), fields, is_success=False)
        else:
            self._deliver(fields)
        for request_id, bookmark in fields.get("bookmarks", {}).items():
            if request_id in self._asked:
                self._asked[request_id].bookmark = bookmark
        for request_id, count in fields.get("rows", {}).items():
            if request_id in self._asked:
                self._asked[request_id].matching = count

    def _answer(self, request_id: str, answer: dict[str, Any], *, is_success: bool) -> None:
        """Note that a subscription was accepted, refused or ended."""
        one = self._asked.get(request_id)
        if one is None:
            return
        if is_success:
            one.accept()
            self._patience = 1
            return
        del self._asked[request_id]
        if answer.get("reason") in LATER:
            if not one.attempts:
                log.warning(
                    "a subscription is asked for again", topic=one.request.topic, reason=str(answer.get("detail"))
                )
            one.not_now(self._link.times.backoff(one.attempts))
        else:
            del self._served[one.name]
            self._failure = self._failure or error_of(answer)

    def _deliver(self, fields: dict[str, Any]) -> None:
        command = fields.get("command")
        served = [self._asked[request_id] for request_id in fields.get("subs", ()) if request_id in self._asked]
        if command in (None, "heartbeat") or not served:
            return
        for request_id in fields["subs"]:
            one = self._asked.get(request_id)
            if one is None:
                continue
            if command == "refetch":
                one.bookmark, one.is_catching_up = None, True
            elif command == "group_end":
                one.is_catching_up = False
                if not one.request.live:
                    del self._served[one.name], self._asked[request_id]
        if command != "refetch":
            names = [one.name for one in served]
            self._waiting.append(message_of({**fields, "subs": names}, names_subscriptions=self._is_named))


class GatewayOpener(SubscriptionOpener[GatewayRequest]):
    """Opens subscriptions over WebSockets, one for each feed; the gateway parses the records."""

    def __init__(self, url: str, token: Token, name: str) -> None:
        super().__init__()
        self._url, self._token, self._name = url, token, name
        self.times = LinkTimes()
        """The limits of connections that are opened from now on."""
        self._key_fields: dict[str, tuple[KeyFields, bool]] = {}

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
        key = self.key_to_read(name, key)
        if min_version is not None:
            record = self._http().record(name, key, min_version)
            return None if record is None else message_of({"command": "sow", **record}, names_subscriptions=False)
        quoted = key.replace("\\", "\\\\").replace("'", "\\'")
        query = self.subscription(name, f"SOW_KEY() = '{quoted}'", "timestamp", "sow")
        with query:
            records = [message for message in query if message.command == "sow"]
        return records[0] if records else None

    def topics(self) -> list[TopicInfo]:
        """The topics that the gateway serves to this client."""
        return [TopicInfo(one["topic"], tuple(one["key"]), one["message_type"], None) for one in self._http().topics()]

    def key_text(self, name: str, key: Value) -> str:
        """The SOW key of a record; the gateway is asked once for a topic's key fields, where they are needed."""
        if isinstance(key, str) and not is_respelled(key):
            return key
        if name not in self._key_fields:
            pointers, is_of_groups = self._http().key_fields(name)
            self._key_fields[name] = KeyFields(pointers), is_of_groups
        fields, is_of_groups = self._key_fields[name]
        return key_text(name, key, fields, is_of_groups=is_of_groups)

    def _link(self) -> GatewayLink:
        return GatewayLink(self._url, self._token, self._name, self.times)

    def _http(self) -> GatewayHttp:
        return GatewayHttp(GatewayAddress(self._url), self._token, self.times)
