"""The subscriptions of one session: how they begin, change with requests and rights, and end. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from processor.errors import BrokerUnavailable, GroupsLost, SowstreamError
from processor.gateway.access.allowances import counted_steps
from processor.gateway.access.entitlements import NO_RIGHTS, Rights
from processor.gateway.access.requests import BadRequest, Request
from processor.gateway.feeds.bookmark_text import query_hash, read_bookmark
from processor.gateway.sessions.client_subscription import ClientSubscription, reason_of
from processor.gateway.sessions.host import complete_behind
from processor.subscriptions import Connection, EngineSubscription, SubscriptionSpec
from processor.subscriptions.request.subscribe_options import FORMS
from processor.subscriptions.request.top_n import FAR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from processor.gateway.access.allowances import Allowance
    from processor.gateway.access.identity import Identity
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.gateway.sessions.host import SessionHost
    from processor.subscriptions import Engine, Topic
    from processor.subscriptions.request.turn import Build

log = structlog.stdlib.get_logger("sowstream.gateway")

INLINE_WORDS: Final = 50
"""A request with more words is not compiled on the event loop: about 1 ms."""


class SessionSubscriptions:
    """The subscriptions of one session, each with the engine's subscription that serves it."""

    def __init__(
        self, gateway: SessionHost, answer: Callable[[dict[str, Any]], None], on_waiting: Callable[[], None]
    ) -> None:
        """Begin without subscriptions.

        Args:
            gateway: its feeds, rights and limits.
            answer: queues an answer to the client.
            on_waiting: called when a message begins to wait.
        """
        self.by_id: Final[dict[str, ClientSubscription]] = {}
        """The subscriptions, by the ids of their requests."""
        self.connections: Final[dict[str, Connection]] = {}
        """The connection to the engine of each topic."""
        self.sent_bookmarks: Final[dict[str, tuple[str, str] | None]] = {}
        """The bookmark of each subscription that was sent last; None: it began again, and has none yet."""
        self.identity: Identity | None = None
        """Who the client is; None before `logon`."""
        self.allowance: Allowance | None = None
        """The budgets of the client's identity; None: no limit."""
        self.ending: Final[set[str]] = set()
        """The subscriptions that end behind the messages that wait."""
        self._gateway = gateway
        self._answer = answer
        self._on_waiting = on_waiting
        self._steps = 0  # Those in the account of the allowance.
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """End all of them."""
        for task in self._tasks:
            task.cancel()
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()
        self.by_id.clear()
        self._sum_steps()
        self._answer = self._on_waiting = _ignore  # They are of the session, which refers to this object.

    def rights(self, topic: str) -> Rights:
        """The rights of the client on a topic.

        Raises:
            BadRequest: the topic does not exist, or the client may not know of it.
        """
        if self.identity is None:
            raise BadRequest("logon_required", "send logon first")
        rights = self._gateway.rights(self.identity, topic)
        if topic not in self._gateway.feeds or rights == NO_RIGHTS:
            raise BadRequest("not_entitled", f"there is no topic {topic!r:.100} for {self.identity.user}")
        return rights

    async def subscribe(self, request: Request) -> None:
        """Begin a subscription; the answer comes before its messages."""
        topic = request.required("topic")
        if self.rights(topic).read is None:
            raise BadRequest("not_entitled", f"{topic} may not be read")
        if request.id in self.by_id:
            raise BadRequest("bad_request", f"there is a subscription {request.id!r} already")
        if len(self.by_id) >= self._gateway.limits.subscriptions_per_connection:
            raise BadRequest("limit", f"{len(self.by_id)} subscriptions are the limit of a connection")
        subscription = ClientSubscription(request.op, topic, request.text("filter"), request.fields.get("options", {}))
        self._spend(subscription)
        self.by_id[request.id] = subscription
        try:
            resume = request.text("resume")
            async with self._prepared(subscription, resumes=resume is not None) as (spec, build):
                if self.by_id.get(request.id) is not subscription:
                    raise BadRequest("no_such_subscription", f"{request.id!r:.100} was ended before it began")
                if self.allowance is not None:
                    subscription.steps = counted_steps(self.allowance, spec.live_steps)
                    self._sum_steps()
                self._open(request.id, subscription, spec, resume, build)
        except BaseException:
            if self.by_id.get(request.id) is subscription:
                self.by_id.pop(request.id)
            self._sum_steps()
            raise

    async def replace(self, request: Request) -> dict[str, Any]:
        """Change the filter or the options of a subscription in one step; returns the fields of the answer."""
        sub_id = request.required("sub")
        subscription = self._subscription(sub_id)
        if not FORMS[subscription.op]["live"]:
            raise BadRequest("bad_request", f"{subscription.op} cannot be replaced")
        changed = ClientSubscription(
            subscription.op,
            subscription.topic,
            request.fields.get("filter", subscription.asked),
            {**subscription.options, **request.fields.get("options", {})},
        )
        changed.options = {name: value for name, value in changed.options.items() if value is not None}
        if changed.asked == "":
            changed.asked = None
        self._spend(changed)
        async with self._prepared(changed) as (spec, build):
            if self.by_id.get(sub_id) is not subscription or subscription.is_ending:
                raise BadRequest("no_such_subscription", f"subscription {sub_id!r:.100} has ended")
            if subscription.engine is None:
                raise BadRequest("unavailable", f"subscription {sub_id!r:.100} begins again; try again")
            connection = self.connections[subscription.topic]
            if self.allowance is not None:
                changed.steps = counted_steps(self.allowance, spec.live_steps, subscription.steps)
            subscription.engine = connection.replace(subscription.engine, spec, build=build)
            subscription.change(changed)
            self._sum_steps()
            subscription.query = query_hash(spec)
        return selected(spec)

    def unsubscribe(self, request: Request) -> None:
        """End a subscription."""
        sub_id = request.required("sub")
        self._drop(sub_id, self._subscription(sub_id))

    def begin_again(self, feed: KafkaFeed) -> None:
        """Begin the subscriptions of a topic again, whose engine is a new one."""
        name = feed.topic.name
        if (old := self.connections.pop(name, None)) is None:
            return
        old.close()
        for sub_id, subscription in list(self.by_id.items()):
            if subscription.topic == name and subscription.engine is not None:
                self._refetch(sub_id, subscription, "the view was made anew")

    async def apply_rights(self) -> None:
        """Apply changed rights to the running subscriptions; records that may not be seen any more leave."""
        for sub_id, subscription in list(self.by_id.items()):
            running = subscription.engine
            if self.by_id.get(sub_id) is not subscription or running is None or subscription.is_ending:
                continue
            try:
                rights = self.rights(subscription.topic) if self.identity is not None else NO_RIGHTS
            except BadRequest:
                rights = NO_RIGHTS
            held = running.spec.entitlement
            if rights.read is not None and held is not None and rights.read.text == held.text:
                continue
            try:
                if rights.read is None:
                    self._withdraw(sub_id, subscription, running)
                else:
                    self._narrow(sub_id, subscription)
            except SowstreamError as error:
                self.fail(sub_id, error)
            await asyncio.sleep(0)  # Others have their turn.

    def end_withdrawn(self) -> None:
        """End the subscriptions whose last messages were taken."""
        for sub_id in list(self.ending):
            subscription = self.by_id.get(sub_id)
            connection = None if subscription is None else self.connections.get(subscription.topic)
            if connection is None or not connection.has_waiting:
                self.ending.discard(sub_id)
                self.fail(sub_id, BadRequest("not_entitled", "the right to read was withdrawn"))

    def begin_anew(self, sub_id: str, error: Exception) -> bool:
        """Begin a subscription again that has ended with an error; False: it cannot."""
        subscription = self.by_id.get(sub_id)
        if subscription is None or not isinstance(error, GroupsLost):
            return False
        self._refetch(sub_id, subscription, str(error))
        return True

    def fail(self, sub_id: str, error: Exception) -> None:
        """End a subscription, and send the error to the client."""
        if (subscription := self.by_id.get(sub_id)) is not None:
            self._drop(sub_id, subscription)
        self._answer({"op": "ended", "sub": sub_id, "reason": reason_of(error), "detail": str(error)})

    def _subscription(self, sub_id: str) -> ClientSubscription:
        subscription = self.by_id.get(sub_id)
        if subscription is None:
            raise BadRequest("no_such_subscription", f"there is no subscription {sub_id!r:.100}")
        return subscription

    def _topic(self, subscription: ClientSubscription) -> Topic:
        return self._gateway.feeds[subscription.topic].topic

    def _reading(self, topic: str) -> Rights:
        rights = self.rights(topic)
        if rights.read is None:
            raise BadRequest("not_entitled", f"{topic} may not be read")
        return rights

    def _spend(self, subscription: ClientSubscription) -> None:
        """Count the work to compile a request to the client's account."""
        if self.allowance is not None:
            self.allowance.words.spend(subscription.words)

    @asynccontextmanager
    async def _prepared(
        self, subscription: ClientSubscription, *, with_snapshot: bool = False, resumes: bool = False
    ) -> AsyncIterator[tuple[SubscriptionSpec, Build | None]]:
        """The request with the rights of now, and its build, when the view has caught up and the build is ready.

        To resume a window, all places of its order are needed: it looked at others then.
        """
        feed = self._gateway.feeds[subscription.topic]
        while True:
            # A wrong request is refused before the view has caught up.
            rights = self._reading(subscription.topic)
            make = partial(subscription.spec, feed.topic, rights, with_snapshot=with_snapshot)
            spec = await self._gateway.compiled(subscription.words, make, self.allowance)
            engine = await feed.ready(self._gateway.ready_timeout_s)
            if self._reading(subscription.topic).text != rights.text:
                continue
            # What changed since a bookmark is found without the snapshot.
            build = engine.prepare(spec) if spec.options.is_window or not resumes else None
            if build is None:
                yield spec, None
                return
            try:
                depth = FAR if resumes else spec.window_depth
                await self._gateway.slices.build(build, depth, lambda engine=engine: feed.engine is engine)  # type: ignore[misc]
                # Rights may have changed meanwhile, and the engine may be another one.
                if feed.engine is engine and self._reading(subscription.topic).text == rights.text:
                    yield spec, build
                    return
            finally:
                complete_behind(self._gateway.slices, feed, engine, build)
                engine.release(build)

    def _sum_steps(self) -> None:
        """Count the work of the subscriptions that run to the client's account."""
        steps = sum(one.steps for one in self.by_id.values())
        if self.allowance is not None and steps != self._steps:
            self.allowance.live_steps += steps - self._steps
            self._steps = steps

    def _drop(self, sub_id: str, subscription: ClientSubscription) -> None:
        self.by_id.pop(sub_id, None)
        self._sum_steps()
        self.sent_bookmarks.pop(sub_id, None)
        connection = self.connections.get(subscription.topic)
        if connection is not None and subscription.engine is not None:
            connection.unsubscribe(subscription.engine)

    def _open(
        self,
        sub_id: str,
        subscription: ClientSubscription,
        spec: SubscriptionSpec,
        resume: str | None,
        build: Build | None,
    ) -> None:
        feed = self._gateway.feeds[subscription.topic]
        assert feed.engine is not None
        connection = self._connection(feed, feed.engine)
        subscription.query = query_hash(spec)
        if resume is not None:
            bookmark = read_bookmark(resume, subscription.query, feed.topic_id, feed.engine.positions)
            outcome: EngineSubscription | str = bookmark if isinstance(bookmark, str) else ""
            if not isinstance(bookmark, str):
                outcome = connection.resume(spec, sub_id, bookmark)
            if isinstance(outcome, str):
                self._gateway.count_resume("refetched")
                self._succeed(sub_id, spec)
                self._refetch(sub_id, subscription, outcome)
                return
            subscription.engine = outcome
            self._gateway.count_resume("resumed")
        self._succeed(sub_id, spec)
        if resume is None:
            subscription.engine = connection.subscribe(spec, sub_id, build=build)

    def _succeed(self, sub_id: str, spec: SubscriptionSpec) -> None:
        self._answer({"op": "ack", "id": sub_id, "status": "success", **selected(spec)})

    def _connection(self, feed: KafkaFeed, engine: Engine) -> Connection:
        name = feed.topic.name
        connection = self.connections.get(name)
        if connection is None:
            connection = self.connections[name] = engine.connect(
                queue_bytes=self._gateway.limits.queue_bytes, on_waiting=self._on_waiting
            )
        return connection

    def _narrow(self, sub_id: str, subscription: ClientSubscription) -> None:
        """Apply other rights to a running subscription."""
        running, connection = subscription.engine, self.connections[subscription.topic]
        assert running is not None
        is_work = running.grouping is not None or running.window is not None or subscription.words > INLINE_WORDS
        if is_work or bool(running.spec.options.conflation_key):
            # What is made again takes time, and the old rights end now.
            connection.withdraw(running)
            self._refetch(sub_id, subscription, "entitlement")
            return
        if connection.forget_messages(running):
            # The records of messages that may not be sent any more are not known: the client begins again.
            connection.unsubscribe(running)
            self._refetch(sub_id, subscription, "entitlement")
            return
        spec = subscription.spec(self._topic(subscription), self._reading(subscription.topic))
        subscription.engine = connection.replace(running, spec)
        subscription.query = query_hash(spec)

    def _withdraw(self, sub_id: str, subscription: ClientSubscription, running: EngineSubscription) -> None:
        """End a subscription whose records may not be seen any more: each leaves."""
        subscription.is_ending = self.connections[subscription.topic].withdraw(running)
        if subscription.is_ending:
            self.ending.add(sub_id)
        else:
            self.fail(sub_id, BadRequest("not_entitled", "the right to read was withdrawn"))

    def _refetch(self, sub_id: str, subscription: ClientSubscription, reason: str) -> None:
        """Begin a subscription again with a snapshot."""
        subscription.engine = None
        self.sent_bookmarks[sub_id] = None
        self._answer({"command": "refetch", "topic": subscription.topic, "subs": [sub_id], "reason": reason})
        task = asyncio.get_running_loop().create_task(self._begin_with_snapshot(sub_id, subscription))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_with_snapshot(self, sub_id: str, subscription: ClientSubscription) -> None:
        try:
            async with self._prepared(subscription, with_snapshot=True) as (spec, build):
                if self.by_id.get(sub_id) is not subscription:
                    return
                feed = self._gateway.feeds[subscription.topic]
                assert feed.engine is not None
                subscription.query = query_hash(spec)
                connection = self._connection(feed, feed.engine)
                subscription.engine = connection.subscribe(spec, sub_id, build=build)
        except BrokerUnavailable:
            self._refetch(sub_id, subscription, "the view has not caught up")
        except SowstreamError as error:
            self.fail(sub_id, error)
        except Exception:
            log.exception("a subscription did not begin again", topic=subscription.topic)
            self.fail(sub_id, BadRequest("internal", "the gateway's log has the details"))


def selected(spec: SubscriptionSpec) -> dict[str, Any]:
    """Return the select list for the ack of a subscription; messages shared with others may have more fields."""
    asked = spec.builder.asked
    return {} if asked is None else {"select": asked.rules}


def _ignore(*_: object) -> None:
    """Do nothing: the client is gone."""
