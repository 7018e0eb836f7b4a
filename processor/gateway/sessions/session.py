"""One client's session: its identity, and the answers and frames that wait for it. Event loop only."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import structlog

from processor.codec.json_value import to_json_line
from processor.errors import SowstreamError
from processor.gateway.access.requests import Request
from processor.gateway.feeds.bookmark_text import REFETCH
from processor.gateway.sessions.frames import frame_of
from processor.gateway.sessions.host import NO_SENDER
from processor.gateway.sessions.session_subscriptions import SessionSubscriptions
from processor.subscriptions.request.subscribe_options import FORMS
from processor.subscriptions.request.turn import TURN_S

if TYPE_CHECKING:
    from processor.gateway.access.allowances import Allowance
    from processor.gateway.access.entitlements import Rights
    from processor.gateway.access.identity import Identity
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.gateway.sessions.host import FrameSender, SessionHost
    from processor.subscriptions import Connection

log = structlog.stdlib.get_logger("sowstream.gateway")

_MESSAGES_MAX: Final = 500
"""Messages of one topic in a frame."""
_FRAME_CHARACTERS: Final = 512 * 1024
"""A frame that has so much gets no further message."""
_CONTROL_MAX: Final = 1_000
"""Answers that wait for a client; a client that asks on without reading them is closed."""


class Session:
    """The subscriptions of one client."""

    def __init__(self, gateway: SessionHost, sender: FrameSender) -> None:
        """Begin without an identity.

        Args:
            gateway: its feeds, rights and encoder.
            sender: sends its frames.
        """
        self.sender = sender
        """Sends its frames."""
        self.sending_since_s: float | None = None
        """Time at which the frame began that is being sent; None: none is."""
        self.client = ""
        """The name that the client chose."""
        self.is_waiting = False
        """True if messages wait for the next tick."""
        self.is_closing = False
        """True if it ends when all that waits is sent."""
        self.close_code = 1000
        """The code of that end."""
        self.close_reason = ""
        """Its reason."""
        self.sent = 0
        """Messages that were sent."""
        self._gateway = gateway
        self._control: list[str] = []  # Most sessions have none: an empty deque takes ten times as much.
        self._subscriptions = SessionSubscriptions(gateway, self.answer, self._on_waiting)

    @property
    def identity(self) -> Identity | None:
        """The client's identity; None before `logon`."""
        return self._subscriptions.identity

    @identity.setter
    def identity(self, identity: Identity | None) -> None:
        self._subscriptions.identity = identity

    @property
    def allowance(self) -> Allowance | None:
        """The budgets of the client's identity; None: no limit."""
        return self._subscriptions.allowance

    @allowance.setter
    def allowance(self, allowance: Allowance) -> None:
        self._subscriptions.allowance = allowance

    @property
    def subscriptions(self) -> int:
        """The number of its subscriptions."""
        return len(self._subscriptions.by_id)

    @property
    def has_waiting(self) -> bool:
        """True if a frame waits."""
        if self._control:
            return True
        for connection in self._subscriptions.connections.values():  # noqa: SIM110 - `any` takes three times as long.
            if connection.has_waiting:
                return True
        return False

    @property
    def is_catching_up(self) -> bool:
        """True if the next messages must be read or computed first: of a snapshot, or what changed since a bookmark."""
        for connection in self._subscriptions.connections.values():  # noqa: SIM110 - as in `has_waiting`.
            if connection.is_catching_up:
                return True
        return False

    @property
    def waiting_bytes(self) -> int:
        """The size of the records whose messages wait."""
        return sum(connection.waiting_bytes for connection in self._subscriptions.connections.values())

    def answer(self, fields: dict[str, Any]) -> None:
        """Queue an answer, which is sent at once; none behind the end: a request that waits is asked again then."""
        if self.is_closing:
            return
        if len(self._control) >= _CONTROL_MAX:
            self.close(4408, "answers are not read")
            return
        self._control.append(to_json_line(fields))
        self.sender.wake()

    def succeed(self, request_id: str, **fields: Any) -> None:
        """Answer a request with success."""
        self.answer({"op": "ack", "id": request_id, "status": "success", **fields})

    def refuse(self, request_id: str, reason: str, detail: str, **fields: Any) -> None:
        """Answer a request with failure."""
        self.answer({"op": "ack", "id": request_id, "status": "failure", "reason": reason, "detail": detail, **fields})

    def close(self, code: int, reason: str) -> None:
        """End the session when all that waits is sent."""
        self.is_closing, self.close_code, self.close_reason = True, code, reason
        self.sender.wake()

    def abort(self, code: int, reason: str) -> None:
        """End the session at once."""
        self.is_closing, self.close_code, self.close_reason = True, code, reason
        self.sender.abort()

    def end(self) -> None:
        """Drop everything: the client is gone. No callback is called any more, nor kept: each is a reference cycle."""
        self._subscriptions.close()
        self._control.clear()
        self.sender = NO_SENDER

    def rights(self, topic: str) -> Rights:
        """The rights of the client on a topic.

        Raises:
            BadRequest: the topic does not exist, or the client may not know of it.
        """
        return self._subscriptions.rights(topic)

    async def subscribe(self, request: Request) -> None:
        """Begin a subscription; the answer comes before its messages."""
        await self._subscriptions.subscribe(request)

    async def replace(self, request: Request) -> None:
        """Change the filter or the options of a subscription in one step; its number of rows comes with the answer."""
        self.succeed(request.id, **await self._subscriptions.replace(request))
        rows: dict[str, int] = {}
        self._add_rows({request.required("sub"): None}, rows)
        if rows:  # Its messages have it too, but there are none if the same records are in the window.
            self._control.append(frame_of((), (), {}, rows))

    def unsubscribe(self, request: Request) -> None:
        """End a subscription."""
        self._subscriptions.unsubscribe(request)
        self.succeed(request.id)

    def begin_again(self, feed: KafkaFeed) -> None:
        """Begin the subscriptions of a topic again, whose engine is a new one."""
        self._subscriptions.begin_again(feed)

    async def apply_rights(self) -> None:
        """Apply changed rights to the running subscriptions; records that may not be seen any more leave."""
        await self._subscriptions.apply_rights()

    def _on_waiting(self) -> None:
        if not self.is_waiting:
            self.is_waiting = True
            self._gateway.waiting.append(self)

    async def lose_identity(self) -> None:
        """End the session of a token that was revoked; every record leaves before."""
        self.identity = None
        await self.apply_rights()
        self.close(4401, "the token was revoked")

    def expire(self) -> None:
        """End the session of a token that has expired: nothing leaves, as its client resumes with a new one."""
        self.identity = None
        self._subscriptions.close()
        self.close(4401, "the token has expired")

    async def next_frame(self) -> str | None:
        """The next frame, when the turn of this session has come if that is work; None if nothing waits."""
        return await self._gateway.slices.run(self.take_frame) if self.is_catching_up else self.take_frame()

    def take_frame(self) -> str | None:
        """The next frame; None if nothing waits, or nothing was found within a turn."""
        self.is_waiting = False
        control, self._control = self._control, []
        bodies: list[str] = []
        bookmarks: dict[str, str] = {}
        rows: dict[str, int] = {}
        size = 0
        until_s = perf_counter() + TURN_S
        encode = self._gateway.encoder.message
        for topic, connection in self._subscriptions.connections.items():
            if not connection.has_waiting:
                continue
            moved: dict[str, None] = {}
            connection.begin_turn()
            try:
                # One by one: the rest of a frame that is full stays in the queue.
                for _ in range(_MESSAGES_MAX):
                    if (message := connection.take_next()) is None:
                        break
                    body = encode(message)
                    bodies.append(body)
                    size += len(body)
                    for sub_id in message.sub_ids:
                        moved[sub_id] = None
                        if message.command == "group_end":
                            self._finish_query(sub_id)
                    if size > _FRAME_CHARACTERS or perf_counter() > until_s:
                        break
            except SowstreamError as error:
                if connection.ended_id is not None and not self._subscriptions.begin_anew(connection.ended_id, error):
                    self._subscriptions.fail(connection.ended_id, error)
            self._add_bookmarks(topic, connection, moved, bookmarks)
            self._add_rows(moved, rows)
            if size and perf_counter() > until_s:
                break
        if self._subscriptions.ending:
            self._subscriptions.end_withdrawn()
        if self.has_waiting:
            self._on_waiting()
        if not control and not bodies:
            return None
        self.sent += len(bodies)
        if not control and not rows:
            return self._gateway.encoder.frame(bodies, bookmarks)
        return frame_of(tuple(control), bodies, bookmarks, rows)

    def bookmark(self, sub_id: str) -> str | None:
        """The bookmark of a subscription behind the last frame that was taken; None: none was sent yet."""
        bookmarks = self._subscriptions.sent_bookmarks
        if sub_id not in bookmarks:
            return None
        sent = bookmarks[sub_id]
        return REFETCH if sent is None else f"{sent[0]}.{sent[1]}"

    def beat(self) -> None:
        """Send the bookmarks that moved although no message came."""
        if self.sending_since_s is not None or self.has_waiting:
            return
        bookmarks: dict[str, str] = {}
        rows: dict[str, int] = {}
        self._add_rows(dict.fromkeys(self._subscriptions.by_id), rows)
        for topic, connection in self._subscriptions.connections.items():
            ids = [sub_id for sub_id, one in self._subscriptions.by_id.items() if one.topic == topic]
            self._add_bookmarks(topic, connection, dict.fromkeys(ids), bookmarks)
        if bookmarks or rows:
            self._control.append(frame_of((), (), bookmarks, rows))
            self.sender.wake()

    def _finish_query(self, sub_id: str) -> None:
        subscription = self._subscriptions.by_id.get(sub_id)
        if subscription is not None and not FORMS[subscription.op]["live"]:
            self._subscriptions.by_id.pop(sub_id)

    def _add_rows(self, moved: dict[str, None], rows: dict[str, int]) -> None:
        """Add the number of matching records of each window, where it has changed."""
        for sub_id in moved:
            subscription = self._subscriptions.by_id.get(sub_id)
            if subscription is None or subscription.engine is None or subscription.engine.window is None:
                continue
            count = len(subscription.engine.window.places.sort_keys)
            if subscription.rows != count:
                rows[sub_id] = subscription.rows = count

    def _add_bookmarks(
        self, topic: str, connection: Connection, moved: dict[str, None], bookmarks: dict[str, str]
    ) -> None:
        feed = self._gateway.feeds[topic]
        for sub_id in moved:
            subscription = self._subscriptions.by_id.get(sub_id)
            if subscription is None or subscription.engine is None or not subscription.engine.is_live:
                continue
            if subscription.is_ending:
                continue
            bookmark = connection.bookmark(subscription.engine)
            if bookmark is None:
                continue
            places = self._gateway.places_text(feed, bookmark)
            if self._subscriptions.sent_bookmarks.get(sub_id) != (subscription.query, places):
                self._subscriptions.sent_bookmarks[sub_id] = (subscription.query, places)
                bookmarks[sub_id] = f"{subscription.query}.{places}"
