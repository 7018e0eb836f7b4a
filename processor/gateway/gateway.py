"""The gateway itself: its feeds, rights and sessions, and the ticks that deliver waiting messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Final, TypeVar

import structlog

from processor.codec import codec_of
from processor.config import Config
from processor.config.gateway import AuthConfig, GatewayLimits
from processor.errors import ConfigurationError
from processor.filter import compile_filter
from processor.gateway.access.allowances import Allowance, Allowances
from processor.gateway.access.entitlements import NO_RIGHTS, Entitlements, Rights
from processor.gateway.access.identity import ANONYMOUS, AccessDenied, Authenticator, Identity, KeyNotFetched
from processor.gateway.access.watched_files import WatchedFiles
from processor.gateway.commands.publishing import Publishing
from processor.gateway.commands.turns import BoundedExecutor, paced
from processor.gateway.feeds.bookmark_text import places_text
from processor.gateway.feeds.kafka_feed import KafkaFeed
from processor.gateway.sessions.frames import FrameEncoder
from processor.gateway.sessions.gateway_metrics import GatewayMetrics
from processor.gateway.sessions.host import Slices, Waiting
from processor.gateway.sessions.memory_keeper import MemoryKeeper
from processor.gateway.sessions.session import Session
from processor.gateway.sessions.session_subscriptions import INLINE_WORDS
from processor.merge import KeyFields
from processor.subscriptions import SubscriptionSpec, Topic
from processor.subscriptions.resume import Bookmark

log = structlog.stdlib.get_logger("sowstream.gateway")

_Parsed = TypeVar("_Parsed")

READY_TIMEOUT_S: Final = 30.0
"""Longest wait of a request for a topic's view."""
COMMENT_INTERVAL_S: Final = 15.0
"""Longest silence on Server-Sent Events: a comment follows, for proxies that cut quiet connections."""
_VERIFYING_THREADS: Final = 8
"""Tokens that are verified at a time; and further ones, with threads of their own, that wait for their keys."""
_VERIFYING_WAITING: Final = 1_000
"""Tokens that wait for one of these threads."""
_COMPILING_WAITING: Final = 200
"""Requests that wait to be compiled, beyond those that take little: ten seconds of work at most."""
_INLINE_BYTES: Final = 32 * 1024
"""Longer texts are parsed on a thread: a megabyte of lists takes a second."""
_UNIDENTIFIED_SHARE: Final = 10
"""One of so many connections may be without an identity yet."""
_FLUSH_S: Final = 0.01
"""Longest time in which sessions are served without a pause for others."""
_TICK_S: Final = 0.02
"""Messages of so long are packed into one frame."""
_CATCH_UP_S: Final = 0.01
"""Time of a tick for sessions that read snapshots, together."""
_RELOAD_S: Final = 0.4
_HEARTBEAT_S: Final = 5.0
_SLOW_CHECK_S: Final = 1.0


class Gateway:
    """The state of one gateway process. Event loop only."""

    def __init__(self, config: Config, *, number: int = 0, feeds: Mapping[str, KafkaFeed] | None = None) -> None:
        """Read the files of tokens and entitlements.

        Args:
            config: the settings.
            number: the number of this process, of several with the same settings.
            feeds: the feed of each topic; None: they read Kafka.

        Raises:
            ConfigurationError: a topic or a file cannot be used.
        """
        self.config: Final = config
        """The settings."""
        self.settings: Final = config.gateway
        """The section `gateway`."""
        self.limits: Final[GatewayLimits] = config.gateway.limits
        """The limits."""
        self.ready_timeout_s = READY_TIMEOUT_S
        """Longest wait of a request for a topic's view."""
        self.comment_interval_s = COMMENT_INTERVAL_S
        """Longest silence on Server-Sent Events."""
        names = served_topics(config)
        auth = self.settings.auth if isinstance(self.settings.auth, AuthConfig) else None
        tokens = None if auth is None else auth.tokens_file
        key = None if auth is None or auth.jwt is None else auth.jwt.public_key_file
        # Before they are read: what changes meanwhile is read again. On a thread: a file may be large.
        self._files: list[WatchedFiles] = []
        self.watch("tokens", tokens, load=lambda: asyncio.to_thread(self.authenticator.read_tokens))
        self.watch("public key", key, load=lambda: asyncio.to_thread(self.authenticator.read_key))
        self.watch("entitlements", self.settings.entitlements, load=lambda: asyncio.to_thread(self.entitlements.load))
        self.authenticator: Final = Authenticator(auth)
        """Verifies tokens."""
        self.entitlements: Final = Entitlements(
            self.settings.entitlements,
            self.key_fields,
            names,
            [name for name in names if not config.topic(name).has_fields],
        )
        """The rights of every identity."""
        self.feeds: Final[Mapping[str, KafkaFeed]] = feeds or {name: self._feed(name, number) for name in names}
        """The feed of each topic."""
        self.encoder: Final = FrameEncoder()
        """Encodes messages for all sessions."""
        self.sessions: Final[set[Session]] = set()
        """The sessions of all connected clients."""
        self.metrics: Final = GatewayMetrics(self.sessions, self.encoder, self.feeds)
        """Counts."""
        self.publishing: Final = Publishing(config, self.feeds, self.rights, self.metrics)
        """Publishes for clients."""
        self.memory: Final = MemoryKeeper()
        """Returns the memory of closed connections."""
        self.allowances: Final = Allowances(self.limits, is_anonymous=not self.authenticator.is_required)
        """What each identity may have."""
        self.unidentified = 0
        """Open WebSockets without an identity."""
        self._verifying = BoundedExecutor("verifications", threads=_VERIFYING_THREADS, waiting_max=_VERIFYING_WAITING)
        self._fetching = BoundedExecutor("new keys", threads=_VERIFYING_THREADS, waiting_max=_VERIFYING_WAITING)
        self._compiling = BoundedExecutor("compilations", threads=1, waiting_max=_COMPILING_WAITING, needs_caller=True)
        self.slices = Slices()
        """Gives turns to the work of queries."""
        self.waiting: list[Waiting] = []
        """Sessions with messages for the next tick."""
        self._places: dict[str, tuple[Mapping[int, int], str]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_ready(self) -> bool:
        """True if every topic's view has caught up."""
        return all(feed.is_ready for feed in self.feeds.values())

    @property
    def has_place(self) -> bool:
        """True if there is a place for a connection, which has no identity yet if a token is needed."""
        if len(self.sessions) >= self.limits.connections:
            return False
        return self.unidentified < max(1, self.limits.connections // _UNIDENTIFIED_SHARE)

    def key_fields(self, topic: str) -> KeyFields:
        """The key fields of a topic."""
        return KeyFields(self.config.topic(topic).key_fields)

    def rights(self, identity: Identity, topic: str) -> Rights:
        """The rights of an identity on a topic; none if its token was revoked, also of a command that waited since."""
        return NO_RIGHTS if self._is_revoked(identity) else self.entitlements.rights(identity, topic)

    async def verify(self, token: str | None) -> Identity:
        """The identity that a token proves.

        Raises:
            AccessDenied: it proves none.
            BadRequest: `unavailable`: nothing can be said about it now.
        """
        if not self.authenticator.is_required:
            return ANONYMOUS
        try:
            identity = await self._verifying.run(self.authenticator.verify, token, may_wait=False)
        except KeyNotFetched:
            identity = await self._fetching.run(self.authenticator.verify, token)
        if self.entitlements.is_revoked(identity):
            raise AccessDenied("the token was revoked")
        return identity

    def places_text(self, feed: KafkaFeed, bookmark: Bookmark) -> str:
        """The part of a bookmark's text that all queries of a topic share."""
        if bookmark.low is not bookmark.high:
            return places_text(feed.topic_id, bookmark)
        name = feed.topic.name
        entry = self._places.get(name)
        if entry is None or entry[0] is not bookmark.low:
            entry = self._places[name] = (bookmark.low, places_text(feed.topic_id, bookmark))
        return entry[1]

    def watch(self, name: str, *paths: Path | None, load: Callable[[], Awaitable[None]]) -> None:
        """Read files again when one of them has changed.

        Args:
            name: their name in the log.
            paths: the files; None: there is none.
            load: reads them; where it fails, they stay as they were.
        """
        self._files.append(WatchedFiles(name, [path for path in paths if path is not None], load))

    def count_resume(self, outcome: str) -> None:
        """Count a request to resume."""
        self.metrics.resumes[outcome] = self.metrics.resumes.get(outcome, 0) + 1

    async def start(self) -> None:
        """Begin to read the topics, and to deliver."""
        compile_filter("/key = 1")  # The first filter makes the parser's tables, which takes 0.1 s.
        for feed in self.feeds.values():
            feed.on_begin = self._begin_again
            feed.start()
        self._tasks = [
            asyncio.create_task(self._guarded(self._tick)),
            asyncio.create_task(self._guarded(self._watch_files)),
            asyncio.create_task(self._guarded(self._watch_clients)),
        ]

    async def stop(self) -> None:
        """End the sessions and the feeds; the views are kept."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in list(self.sessions):
            session.close(1012, "the gateway is restarting")
        self._verifying.close()
        self._fetching.close()
        self._compiling.close()
        await asyncio.to_thread(self.publishing.close)
        for feed in self.feeds.values():
            await feed.stop()

    async def compiled(
        self,
        words: int,
        compile: Callable[[], SubscriptionSpec],  # noqa: A002
        allowance: Allowance | None,
    ) -> SubscriptionSpec:
        """Compile a request of so many words of about 20 µs, on a thread if that takes long.

        Args:
            words: the words.
            compile: does it.
            allowance: of the identity that asks, which has one request at a time compiled; None: no limit.

        Raises:
            BadRequest: `unavailable`: too many wait.
            ConfigurationError: it is wrong.
        """
        if words <= INLINE_WORDS:
            return compile()
        async with nullcontext() if allowance is None else allowance.compiling:
            return await self._compiling.run(paced, compile)

    async def parsed(self, data: bytes | str, parse: Callable[[], _Parsed]) -> _Parsed:
        """Parse what a client sent, on a thread if it is long.

        Raises:
            BadRequest: `unavailable`: too many wait; or it is no JSON.
        """
        return parse() if len(data) <= _INLINE_BYTES else await self._compiling.run(paced, parse)

    async def apply_rights(self) -> None:
        """Apply changed rights to every session; one in which that fails ends, as it may have lost rights."""
        for session in list(self.sessions):
            try:
                await self._apply_rights(session)
            except Exception:
                log.exception("changed rights could not be applied to a session, which ends")
                session.abort(1011, "changed rights could not be applied")

    async def _apply_rights(self, session: Session) -> None:
        identity = session.identity
        if identity is not None and identity.is_expired:
            session.expire()
        elif identity is not None and self.is_over(identity):
            await session.lose_identity()
        else:
            await session.apply_rights()

    def is_over(self, identity: Identity) -> bool:
        """Return whether the token of an identity has expired, or was revoked."""
        return identity.is_expired or self._is_revoked(identity)

    def _is_revoked(self, identity: Identity) -> bool:
        return self.entitlements.is_revoked(identity) or (
            self.authenticator.is_required and self.authenticator.is_revoked(identity)
        )

    def _begin_again(self, feed: KafkaFeed) -> None:
        for session in list(self.sessions):
            session.begin_again(feed)

    def _feed(self, name: str, number: int) -> KafkaFeed:
        config = self.config
        process = "gateway" if number == 0 else f"gateway-{number}"
        return KafkaFeed(
            Topic(name, codec_of(config, name), self.key_fields(name), config.has_group_keys(name)),
            dict(config.kafka),
            config.kafka_names.topic(name, "sow"),
            group=f"{config.group_prefix}.gateway",
            directory=Path(config.state_dir) / config.application_id / process / name,
            history_bytes=self.limits.history_bytes,
            indexes=self.settings.indexes.get(name, ()),
            orders=self.settings.orders.get(name, ()),
        )

    @staticmethod
    async def _guarded(work: object) -> None:
        assert callable(work)
        while True:
            try:
                await work()
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("a task of the gateway failed and goes on")
                await asyncio.sleep(1)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            now_ms = time.monotonic_ns() // 1_000_000
            self.encoder.forget()
            for feed in self.feeds.values():
                feed.punctuate(now_ms)
            waiting, self.waiting = self.waiting, []
            # No loop of its own: its variable would keep the last session, however long ago its connection ended.
            reading = [session for session in waiting if session.is_catching_up]
            await self._flush([session for session in waiting if not session.is_catching_up] if reading else waiting)
            self._catch_up(reading)  # Updates first: the others take turns.
            del waiting, reading
            await asyncio.sleep(max(0.001, _TICK_S - (loop.time() - began_s)))

    def _catch_up(self, reading: list[Waiting]) -> None:
        """Let sessions that read snapshots send some of them; those that had no turn are the next tick's first.

        A function of its own: the tick would keep the last session, however long ago its connection ended.
        """
        until_s = asyncio.get_running_loop().time() + _CATCH_UP_S
        for number, session in enumerate(reading, 1):
            session.sender.flush()
            if asyncio.get_running_loop().time() > until_s:
                self.waiting = reading[number:] + self.waiting
                break

    async def _flush(self, sessions: Iterable[Waiting]) -> None:
        """Let sessions send what waits, with pauses for others."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _FLUSH_S
        for session in sessions:
            session.sender.flush()
            if loop.time() > until_s:
                await asyncio.sleep(0)
                until_s = loop.time() + _FLUSH_S

    async def _watch_files(self) -> None:
        """Apply changes of the watched files, such as the entitlements, and the expiry of tokens, within a second."""
        while True:
            await asyncio.sleep(_RELOAD_S)
            # Each by itself: a token must be revocable while the other file is broken.
            is_changed = [await files.read_changed() for files in self._files]
            if any(is_changed):
                await self.apply_rights()
            elif self.authenticator.is_required:
                for session in list(self.sessions):
                    if session.identity is not None and session.identity.is_expired:
                        session.expire()

    async def _watch_clients(self) -> None:
        """Close clients that take nothing, log refusals, and send the bookmarks of quiet subscriptions."""
        beat_s = time.monotonic()
        while True:
            await asyncio.sleep(_SLOW_CHECK_S)
            await self.memory.return_memory()
            self.publishing.log_refusals()
            now_s = time.monotonic()
            for session in list(self.sessions):
                if session.sending_since_s is not None and now_s - session.sending_since_s > self.limits.idle_timeout_s:
                    self.metrics.closed_slow += 1
                    user = None if session.identity is None else session.identity.user
                    log.warning("a client took nothing and is closed", user=user, seconds=self.limits.idle_timeout_s)
                    session.abort(4408, f"nothing was taken for {self.limits.idle_timeout_s:g} s")
            if now_s - beat_s > _HEARTBEAT_S:
                beat_s = now_s
                for session in list(self.sessions):
                    session.beat()


def served_topics(config: Config) -> tuple[str, ...]:
    """The topics that the gateway serves.

    Raises:
        ConfigurationError: there is none, or one keeps no records.
    """
    names = config.gateway.topics
    if names is None:
        every = (*config.topics, *config.conflated, *config.views, *config.processors)
        names = tuple(name for name in every if config.topic(name).sow)
    for name in names:
        if not config.topic(name).sow:
            raise ConfigurationError(f"gateway.topics: {name!r} keeps no records (sow: false), so it cannot be served")
    if not names:
        raise ConfigurationError("nothing to serve: the settings have no topics; name another file with -c")
    return names
