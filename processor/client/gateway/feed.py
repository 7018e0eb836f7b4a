"""The messages of subscriptions that a gateway serves; after a lost connection they are resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from processor.client.gateway.link import GatewayLink, error_of, message_of
from processor.errors import BrokerUnavailable, ConfigurationError, SowstreamError
from processor.subscriptions.options import Options

if TYPE_CHECKING:
    from processor.client.subscribe.arguments import Form
    from processor.subscriptions import Message

_OPS: Final = {
    (True, False, False): "sow",
    (False, True, False): "subscribe",
    (True, True, False): "sow_and_subscribe",
    (False, True, True): "delta_subscribe",
    (True, True, True): "sow_and_delta_subscribe",
}


class GatewayRequest:
    """A subscription as it was asked for."""

    def __init__(self, topic: str, filter: str | None, options: Options, form: Form) -> None:  # noqa: A002 - AMPS' name
        if options.bookmark is not None:
            raise ConfigurationError("option 'bookmark' replays from Kafka; a gateway resumes by itself")
        defaults = Options._field_defaults
        self.op: Final = _OPS[form.snapshot, form.live, form.delta]
        """The request."""
        self.topic: Final = topic
        """The topic."""
        self.filter: Final = filter
        """Selects records."""
        self.live: Final = form.live
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


class GatewayFeed:
    """A `TopicFeed` over one WebSocket, for subscriptions of any topic."""

    def __init__(self, link: GatewayLink, *, is_named: bool) -> None:
        """Begin without subscriptions.

        Args:
            link: the connection, not open yet.
            is_named: whether messages name their subscriptions.
        """
        self._link = link
        self._is_named = is_named
        self._requests: dict[str, GatewayRequest] = {}
        self._bookmarks: dict[str, str] = {}
        self._waiting: list[Message] = []
        self._catching_up: set[str] = set()
        self._numbered = 0

    @property
    def is_live(self) -> bool:
        """True if the snapshots were delivered."""
        return not self._catching_up and not self._waiting and self._link.is_open

    @property
    def is_over(self) -> bool:
        """True if no more messages will come."""
        return not self._requests and not self._waiting

    @property
    def healed(self) -> int:
        """Always 0: the gateway computes deltas from full records."""
        return 0

    @property
    def unchecked(self) -> int:
        """Always 0, as `healed`."""
        return 0

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            return waiting
        try:
            if not self._link.is_open:
                if not self._link.reopen(wait_s):
                    return []
                for name, request in list(self._requests.items()):
                    self._ask(name, request, self._bookmarks.get(name))
            return self._messages(self._link.receive(wait_s) or [])
        except BrokerUnavailable:
            return []  # The next turn connects again.

    def add(self, request: GatewayRequest, sub_id: str | None) -> str:
        """Add a subscription; returns its name in messages."""
        if sub_id in self._requests:
            raise ConfigurationError(f"there is a subscription {sub_id!r} already")
        while sub_id is None or sub_id in self._requests:
            self._numbered += 1
            sub_id = str(self._numbered)
        if not self._link.is_open:
            self._link.open()
        self._is_named = self._is_named or bool(self._requests)
        # Before it is asked for: a query's end may come with its answer.
        self._requests[sub_id] = request
        try:
            self._ask(sub_id, request, None)
        except BaseException:
            self._requests.pop(sub_id, None)
            raise
        return sub_id

    def remove(self, sub_id: str) -> None:
        """End one subscription."""
        if self._requests.pop(sub_id, None) is None:
            raise ConfigurationError(f"there is no subscription {sub_id!r}")
        self._catching_up.discard(sub_id)
        if self._link.is_open:
            self._link.send("unsubscribe", {"sub": sub_id})

    def begin_again(self, reason: str) -> None:  # noqa: ARG002 - The contract has it.
        """Read everything again from new snapshots."""
        self._bookmarks.clear()
        self._link.drop()

    def close(self, *, delivered: bool) -> None:  # noqa: ARG002 - As above.
        """End it."""
        self._requests.clear()
        self._link.drop()

    def _ask(self, name: str, request: GatewayRequest, resume: str | None) -> None:
        """Begin a subscription; messages before its answer are kept."""
        self._link.send(request.op, request.fields(resume), name)
        while True:
            messages = self._link.receive(30.0)
            if messages is None:
                raise BrokerUnavailable("the gateway did not answer in time")
            for at, message in enumerate(messages):
                if message.get("op") == "ack" and message.get("id") == name:
                    if message["status"] != "success":
                        raise error_of(message)
                    if request.op.startswith("sow") and resume is None:
                        self._catching_up.add(name)
                    self._waiting += self._messages(messages[at + 1 :])
                    return
                self._waiting += self._messages([message])

    def _messages(self, frames: list[dict[str, Any]]) -> list[Message]:
        delivered = []
        for fields in frames:
            self._bookmarks.update(fields.get("bookmarks", {}))
            if fields.get("op") == "ended" and fields["sub"] in self._requests:
                del self._requests[fields["sub"]]
                raise error_of(fields)
            command = fields.get("command")
            names = [name for name in fields.get("subs", ()) if name in self._requests]
            if command in (None, "heartbeat") or not names:
                continue
            if command == "refetch":
                self._catching_up.update(names)
                continue
            if command == "group_end":
                self._catching_up.difference_update(names)
                for name in names:
                    if name in self._requests and not self._requests[name].live:
                        del self._requests[name]
            delivered.append(message_of({**fields, "subs": names}, names_subscriptions=self._is_named))
        return delivered


__all__ = ["GatewayFeed", "GatewayRequest", "SowstreamError"]
