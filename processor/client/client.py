"""The Python client: publish to SOW topics, and subscribe to them, straight on Kafka."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from processor.client.blocking_calls import BlockingCalls
from processor.client.publish.publish_calls import PublishCalls
from processor.client.subscribe.kafka_opener import KafkaOpener
from processor.config import Config, settings_of
from processor.config.secrets import shown_address
from processor.errors import ConfigurationError, SowstreamError
from processor.installation.directory_comparison import warn_of_contradictions
from processor.installation.topic_directory import with_described_topics
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.topic_lookup import TopicLookup
from processor.kafka.own_process import OfOneProcess

# Modules that only some calls need are imported by these: a reader starts sooner without them.
if TYPE_CHECKING:
    from processor.client.async_client import AsyncClient
    from processor.client.publish.publish_calls import ClientSender
    from processor.client.subscribe.opener import SubscriptionOpener
    from processor.queues.consumer import OnQueueMessage, Queue
    from processor.queues.queue_opening import QueueOpener
    from processor.record import Value

_FLUSH_AFTER_ERROR_S = 5.0
_DELIVER_S = 60.0
_SEND_S = 60.0  # The longest wait for calls of other threads: one may be in a callback that waits for the closing one.
_LOOK_S = 0.005  # How often a client that is closed looks whether other threads have sent their commands.

log = logging.getLogger("sowstream.client")


class Client(BlockingCalls, OfOneProcess):
    """A connection to one cluster, with the method names of AMPS' client.

    Its methods may be called from any thread; `Subscription` describes its own rules. Acks are read on a thread of
    their own, which starts with the first command that asks for one.

    A client belongs to the process that created it. In a fork of it, as of `multiprocessing` or of gunicorn with
    `preload_app`, each call raises SowstreamError, and closing does nothing: create a client in each process.
    """

    def __init__(
        self,
        name: str,
        config: Config | Mapping[str, Any] | Path | str | None = None,
        view_dir: Path | str | None = None,
        *,
        bootstrap: str | None = None,
        topic_prefix: str | None = None,
        skip_unreadable: bool = False,
        default: Callable[[Any], Any] | None = None,
        gateway: str | None = None,
        token: str | Callable[[], str] | None = None,
    ) -> None:
        """Create a client. With settings that name topics, it connects only when a call needs it.

        Args:
            name: its name for the brokers.
            config: the settings: a `Config`, a mapping such as a file has, or the path of a file; None reads
                `./sowstream.yaml` and the environment. If these have Kafka's address but no topics, the topics are read
                once, from the cluster's topic directory.
            view_dir: the directory that keeps the records of subscriptions between runs, so that the next run reads
                only newer ones; one process may use it at a time. None: each subscription reads all records again, and
                keeps them in memory, or in a temporary directory if they are many.
            bootstrap: Kafka's address; overrides the settings. Without a settings file it is all that is needed.
            topic_prefix: the first part of the installation's Kafka names; for a client without settings.
            skip_unreadable: whether snapshots and subscriptions leave out SOW records that cannot be parsed, and list
                them in the log and in `unreadable`; otherwise the first one ends the subscription. Each record is then
                parsed twice. Cannot be combined with `view_dir`.
            default: called with a value in a published record that its message type does not write, such as a datetime
                or a UUID in JSON; returns another one, as `default` of `json.dumps`: `default=str`. None: such a record
                is refused.
            gateway: the address of a gateway, such as `http://localhost:8080` or `https://desk/sow`: all calls go over
                it, and neither Kafka nor settings are needed. Subscriptions resume by themselves after a lost
                connection. None: straight to Kafka.
            token: proves to the gateway who the client is; a function is called for each connection, and before a
                JSON Web Token expires.

        Raises:
            ConfigurationError: the settings are invalid, or have no topics, and there is no topic directory.
            BrokerUnavailable: the topics are to be read from the topic directory, and Kafka does not answer.
        """
        OfOneProcess.__init__(self, "client")
        self.name = name
        self._default = default
        self._queues: QueueOpener | None = None
        self._gateway: tuple[str, str | Callable[[], str] | None] | None = None
        self._command_sender: ClientSender | None = None
        self._senders: list[int] = []  # The threads that are sending a command.
        self._flushing: list[int] = []  # The threads in `flush`, which runs callbacks.
        self._closers: list[int] = []  # The threads that wait for all of these, and for what they have sent.
        self._lock = threading.Lock()
        self._is_closed = self._is_ended = False
        if gateway is not None:
            if config is not None or bootstrap is not None or view_dir is not None or skip_unreadable:
                raise ConfigurationError("gateway: its own settings count; leave out the other arguments")
            self._gateway = gateway, token
            from processor.client.gateway.gateway_opener import GatewayOpener  # noqa: PLC0415 - An extra.

            self._reader: SubscriptionOpener[Any] = GatewayOpener(gateway, token, name)
            return
        if token is not None:
            raise ConfigurationError("token: it is for a gateway; Kafka's credentials are in the settings")
        self.config = _settings(config, bootstrap, topic_prefix)
        self._admin = Admin(self.config.kafka, self.config.connect_timeout_s)
        compare = None if self.config.is_from_directory else partial(warn_of_contradictions, self.config, self._admin)
        self._lookup = TopicLookup(self._admin, compare)
        directory = None if view_dir is None else Path(view_dir)
        self._reader = KafkaOpener(
            self.config,
            self._admin,
            self._lookup,
            name=name,
            view_dir=directory,
            skips_unreadable=skip_unreadable,
        )

    def __repr__(self) -> str:
        where = shown_address(self._gateway[0]) if self._gateway is not None else self.config.kafka["bootstrap.servers"]
        return f"<Client {self.name!r} {where}{' closed' if self._is_closed else ''}>"

    @property
    def _opener(self) -> SubscriptionOpener[Any]:
        self.refuse_inherited()
        self._refuse_closed()
        return self._reader

    def _refuse_closed(self) -> None:
        """Refuse a call of a closed client.

        Raises:
            SowstreamError: it is closed.
        """
        if self._is_closed:
            raise SowstreamError(f"the client {self.name!r} is closed: open another one")

    @property
    def unreadable(self) -> dict[str, dict[str, str]]:
        """The SOW records that `skip_unreadable` left out: for each topic, the keys with their reasons."""
        skipped = self._reader.skipped or {}
        return {topic: dict(of_topic.reasons) for topic, of_topic in skipped.items() if of_topic.reasons}

    def __enter__(self) -> Self:
        return self

    async def __aenter__(self) -> AsyncClient[Self]:
        """The calls for an event loop; the client itself is `AsyncClient.client`."""
        from processor.client.async_client import AsyncClient  # noqa: PLC0415

        return AsyncClient(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio  # noqa: PLC0415

        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_inherited:
            return
        if error is None:
            self.close()
            return
        self._is_closed = True
        # The caller must see the first error, not a later one; sent records still get a moment to arrive.
        with contextlib.suppress(Exception):
            self._reader.close()
        if self._queues is not None:
            with contextlib.suppress(Exception):
                self._queues.close()
        with contextlib.suppress(Exception):
            self._end_commands(lambda sender: sender.deliver(_FLUSH_AFTER_ERROR_S), _FLUSH_AFTER_ERROR_S)

    def queue(
        self,
        name: str,
        *,
        max_backlog: int = 10,
        timeout_s: float | None = None,
        on_message: OnQueueMessage | None = None,
    ) -> Queue:
        """Consume a queue: each message goes to one of its consumers, wherever they run, and is leased to it.

        Args:
            name: a queue of the settings.
            max_backlog: most messages that are leased to this consumer at a time. Their leases begin together: it
                begins with one, and leases more ahead while it handles them within the queue's `lease`.
            timeout_s: it ends when no message came for so long; None: it goes on until `close`.
            on_message: called with each message, on a thread of its own; None: iterate over it, or await.

        Returns:
            The queue; leaving the loop body acknowledges a message, an exception releases it.

        Raises:
            ConfigurationError: the client is one of a gateway; no such queue; its topics do not exist; this Kafka has
                no share groups, or the settings of the share group would deliver rolled-back records or skip messages:
                see `sowstream topics apply`.
            BrokerUnavailable: no answer in time.
        """
        self.refuse_inherited()
        self._refuse_closed()
        if self._gateway is not None:
            raise ConfigurationError("a gateway serves no queues; consume them with a client on Kafka")
        with self._lock:
            if self._queues is None:
                from processor.queues.queue_opening import QueueOpener  # noqa: PLC0415

                self._queues = QueueOpener(self.config, self._lookup)
        return self._queues.queue(name, max_backlog=max_backlog, timeout_s=timeout_s, on_message=on_message)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until Kafka has all published records, and every requested ack has arrived.

        Args:
            timeout_s: the longest wait, for both together. None: for Kafka without limit, for acks until none has
                arrived for a minute.

        Raises:
            BrokerUnavailable: Kafka has not taken all records in time.
            AcksMissing: acks have not arrived in time. They may arrive later: flush again, or start a worker.
            Stop: a record was not delivered.
        """
        self.refuse_inherited()
        if (sender := self._command_sender) is None:
            return
        thread = get_ident()
        self._flushing.append(thread)
        try:
            sender.flush(timeout_s)
        finally:
            self._flushing.remove(thread)

    def close(self) -> None:
        """End all subscriptions, send queued records and wait for acks as `flush` does.

        From then on each call but this one and `flush` raises SowstreamError; views keep the records that they have.
        Callbacks of subscriptions and queues may publish until these have ended, and those of acks until all acks have
        come. It waits a minute at most for commands that other threads are sending. In a fork of the client's process
        it does nothing.

        Raises:
            AcksMissing: acks have not arrived; their futures fail with this too.
            Stop: a record was not delivered.
            Exception: the exception of a subscription's callback.
        """
        if self.is_inherited:
            return
        with self._lock:
            self._is_closed = True
        try:
            with contextlib.ExitStack() as stack:
                if self._queues is not None:
                    stack.callback(self._queues.close)
                self._reader.close()
        finally:
            self._end_commands(lambda sender: sender.flush(None), _SEND_S)

    def under_name(self, name: str) -> PublishCalls:
        """The publishing calls for commands that are numbered under another name, over this client's connections.

        A program that publishes for many others needs one client for all of them. It numbers their commands itself.
        """
        return _NamedCalls(self, name)

    def _key_text(self, topic: str, key: Value) -> str:
        return self._reader.key_text(topic, key)

    def _admit(self) -> None:
        thread = get_ident()
        # No lock, for the cost of each command: `_end_commands` notes itself first, and then looks at the senders.
        self._senders.append(thread)
        if self._closers and not self._is_callback(thread):
            self._dismiss()
            self._refuse_closed()

    def _dismiss(self) -> None:
        thread = get_ident()
        if thread in self._senders:  # Not after a refusal.
            self._senders.remove(thread)

    def _is_callback(self, thread: int) -> bool:
        """Return whether a thread is in a callback, of a delivery or of an ack, that may still publish."""
        if self._is_ended or (sender := self._command_sender) is None:
            return False
        if thread in self._closers or thread in self._flushing:
            return True
        return self._senders.count(thread) > 1 or sender.is_calling_back

    def _end_commands(self, wait: Callable[[ClientSender], None], timeout_s: float) -> None:
        """Refuse further commands, wait for those that were sent, and release the connections.

        Args:
            wait: waits for the commands.
            timeout_s: the longest wait for threads that are sending one, as they may wait for room.
        """
        self._closers.append(get_ident())
        with self._lock:
            sender = self._command_sender
        if sender is None:
            return
        try:
            self._wait_for_senders(timeout_s)
            wait(sender)
            self._is_ended = True
            sender.deliver(_DELIVER_S)  # Callbacks of acks may have published.
        finally:
            self._is_ended = True
            sender.close()
            self._command_sender = None

    def _wait_for_senders(self, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while any(sender not in self._closers for sender in list(self._senders)):
            if time.monotonic() >= until_s:
                log.warning(
                    "the client %r closes while other threads still send: no end within %g s, so their commands may be "
                    "lost; does a callback wait for the thread that closes?",
                    self.name,
                    timeout_s,
                )
                return
            time.sleep(_LOOK_S)

    def _sender(self) -> ClientSender:
        self.refuse_inherited()
        if (sender := self._command_sender) is not None:
            return sender
        with self._lock:
            if self._closers:
                self._refuse_closed()
            if self._command_sender is None:
                self._command_sender = self._new_sender()
            return self._command_sender

    def _new_sender(self) -> ClientSender:
        if self._gateway is not None:
            from processor.client.gateway.sender import GatewaySender  # noqa: PLC0415 - An extra.

            return GatewaySender(*self._gateway, self.name)
        from processor.client.publish.command_sender import CommandSender  # noqa: PLC0415

        return CommandSender(self.config, self._admin, self._lookup, name=self.name)


class _NamedCalls(PublishCalls):
    """The publishing calls of a client under another name."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name
        self._default = client._default  # noqa: SLF001

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait for all commands of the client."""
        self._client.flush(timeout_s)

    def _key_text(self, topic: str, key: Value) -> str:
        return self._client._key_text(topic, key)  # noqa: SLF001

    def _admit(self) -> None:
        self._client._admit()  # noqa: SLF001

    def _dismiss(self) -> None:
        self._client._dismiss()  # noqa: SLF001

    def _sender(self) -> ClientSender:
        return self._client._sender().named(self._name)  # noqa: SLF001


def _settings(
    config: Config | Mapping[str, Any] | Path | str | None, bootstrap: str | None, topic_prefix: str | None
) -> Config:
    """The settings of a client, with the topics of the topic directory if they name none."""
    settings = (
        config if isinstance(config, Config) else settings_of(config, bootstrap=bootstrap, topic_prefix=topic_prefix)
    )
    if topic_prefix not in (None, settings.topic_prefix):
        raise ConfigurationError(
            f"topic_prefix is {topic_prefix!r}, and the settings say {settings.topic_prefix!r}; give it once"
        )
    if settings is not config:
        return with_described_topics(settings)
    if bootstrap is None:
        return settings
    return settings.model_copy(update={"kafka": settings.kafka | {"bootstrap.servers": bootstrap}})
