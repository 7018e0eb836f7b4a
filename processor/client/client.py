"""The Python client: publish to SOW topics, and subscribe to them, straight on Kafka."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from processor.client.publish.command_sender import CommandSender
from processor.client.publish.deleting import Selection
from processor.client.publish.publish_options import OnAck, PublishOptions
from processor.client.subscribe.calls import SubscribeCalls
from processor.client.subscribe.opening import SubscriptionOpener
from processor.client.topic_lookup import TopicLookup, warn_of_contradictions
from processor.config import Config, load
from processor.errors import ConfigurationError, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.producers.publisher import Delivered
from processor.record import Value
from processor.shared_topics.directory import with_described_topics
from processor.wire.ack import Ack

_FLUSH_AFTER_ERROR_S = 5.0


class Client(SubscribeCalls):
    """A connection to one cluster, with the method names of AMPS' client.

    Its methods may be called from any thread; `Subscription` describes its own rules. Acks are read on a thread of
    their own, which starts with the first command that asks for one.
    """

    def __init__(
        self,
        name: str,
        config: Config | None = None,
        view_dir: Path | str | None = None,
        *,
        bootstrap: str | None = None,
        topic_prefix: str | None = None,
        skip_unreadable: bool = False,
    ) -> None:
        """Create a client. With settings that name topics, it connects only when a call needs it.

        Args:
            name: its name for the brokers.
            config: the settings; None reads `./sowstream.yaml` and the environment. If these have Kafka's address but
                no topics, the topics are read once, from the cluster's topic directory.
            view_dir: the directory that keeps the records of subscriptions between runs, so that the next run reads
                only newer ones; one process may use it at a time. None: each subscription reads all records again, and
                keeps them in memory, or in a temporary directory if they are many.
            bootstrap: Kafka's address; overrides the settings. Without a settings file it is all that is needed.
            topic_prefix: the first part of the installation's Kafka names; for a client without settings.
            skip_unreadable: whether snapshots and subscriptions leave out SOW records that cannot be parsed, and list
                them in the log and in `unreadable`; otherwise the first one ends the subscription. Each record is then
                parsed twice. Cannot be combined with `view_dir`.

        Raises:
            ConfigurationError: the settings are invalid, or have no topics, and there is no topic directory.
            BrokerUnavailable: the topics are to be read from the topic directory, and Kafka does not answer.
        """
        self.name = name
        self.config = _settings(config, bootstrap, topic_prefix)
        self._admin = Admin(self.config.kafka)
        compare = None if self.config.is_from_directory else partial(warn_of_contradictions, self.config, self._admin)
        self._lookup = TopicLookup(self._admin, compare)
        directory = None if view_dir is None else Path(view_dir)
        self._opener = SubscriptionOpener(
            self.config,
            self._admin,
            self._lookup,
            name=name,
            view_dir=directory,
            skips_unreadable=skip_unreadable,
        )
        self._command_sender: CommandSender | None = None
        self._lock = threading.Lock()

    @property
    def unreadable(self) -> dict[str, dict[str, str]]:
        """The SOW records that `skip_unreadable` left out: for each topic, the keys with their reasons."""
        skipped = self._opener.skipped or {}
        return {topic: dict(of_topic.reasons) for topic, of_topic in skipped.items() if of_topic.reasons}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The caller must see the first error, not a later one; sent records still get a moment to arrive.
        with contextlib.suppress(Exception):
            self._opener.close()
        if self._command_sender is not None:
            with contextlib.suppress(Stop):
                self._command_sender.deliver(_FLUSH_AFTER_ERROR_S)
            self._command_sender.close()
            self._command_sender = None

    def publish(
        self,
        topic: str,
        data: Value,
        key: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        *,
        ack: str | None = None,
        on_ack: OnAck | None = None,
        sequence: int | None = None,
        expiration: float | None = None,
        correlation_id: str | None = None,
        command_id: str | None = None,
        on_delivery: Delivered | None = None,
    ) -> Future[Ack] | None:
        """Store a full record, in place of the previous one.

        Args:
            topic: the SOW topic.
            data: a parsed value, or `bytes` that are an encoded message already and are sent unchanged.
            key: the SOW key; None: computed from the key fields in the data. A topic with `key: explicit` needs it.
            headers: more headers; they travel on to subscribers.
            ack: the acks to wait for: `persisted`, or several such as `processed,persisted`.
            on_ack: called with each of them, on the thread that reads acks: it must be quick and must not block; it
                may publish. Its exceptions are logged.
            sequence: the publisher's own growing number. From one client name and partition, a worker accepts only
                sequences above all earlier ones, so that a publisher may repeat uncertain commands after a crash; only
                one process at a time may use the name in this way. Without it, commands with acks are numbered from 1
                under a name of this instance's own, `<name>-<8 hex digits>`, so that two processes with one name do
                not drop each other's records.
            expiration: seconds until the record expires, restarted by each update; 0 means never, None means the
                topic's setting.
            correlation_id: passed on to subscribers; base64 characters only.
            command_id: the id that its acks carry.
            on_delivery: called when Kafka has the record, or with the error; without it and without `ack`, `flush`
                raises the error. It runs within any publish or flush, or on the thread that reads acks.

        Returns:
            With `ack`, a future of the last ack: `persisted` before `completed`, `processed` and `received`. It
            fails with PublishRejected if a worker rejects the record, with a Stop if Kafka does not take it, and with
            AcksMissing if the client is closed before. Its callbacks run where `on_ack` does.

        Raises:
            RecordRejected: the data has no key, or cannot be encoded. Nothing was sent.
            ConfigurationError: no such topic, header or ack type.
            AcksMissing: 100,000 commands wait for acks, and none has arrived for a minute.
        """
        return self._sender().send(
            "publish",
            topic,
            data,
            key,
            PublishOptions(headers, ack, on_ack, sequence, expiration, correlation_id, command_id, on_delivery),
        )

    def delta_publish(
        self,
        topic: str,
        data: Value,
        key: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        *,
        ack: str | None = None,
        on_ack: OnAck | None = None,
        sequence: int | None = None,
        expiration: float | None = None,
        correlation_id: str | None = None,
        command_id: str | None = None,
        on_delivery: Delivered | None = None,
    ) -> Future[Ack] | None:
        """Merge changes into a record. Arguments, future and errors as `publish`."""
        return self._sender().send(
            "delta_publish",
            topic,
            data,
            key,
            PublishOptions(headers, ack, on_ack, sequence, expiration, correlation_id, command_id, on_delivery),
        )

    def sow_delete(
        self,
        topic: str,
        key: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        *,
        keys: Sequence[str] | None = None,
        data: Value = None,
        filter: str | None = None,  # noqa: A002 - AMPS' name
        ack: str | None = None,
        on_ack: OnAck | None = None,
        sequence: int | None = None,
        correlation_id: str | None = None,
        command_id: str | None = None,
        on_delivery: Delivered | None = None,
    ) -> Future[Ack] | None:
        """Delete the records selected by exactly one of key, keys, data and filter.

        Other arguments and errors as `publish`.

        Args:
            topic: the SOW topic.
            key: the SOW key of one record.
            headers: more headers; they travel on to subscribers.
            keys: the SOW keys of several records: one command for each.
            data: a message with the key fields of one record.
            filter: deletes every record that matches when a worker processes the command: records published before it
                on the same partition count, later ones do not. One command goes to each partition.
            ack: as `publish`; deletes also have `stats`, which carries the number of deleted records.
            on_ack: called with each ack of each command.
            sequence: as `publish`; not with keys.
            correlation_id: passed on to subscribers.
            command_id: the id that its acks carry.
            on_delivery: called for each Kafka record of the command.

        Returns:
            With `ack`, a future that is done when every command was acknowledged; with `stats`, `records_deleted` of
            its result is the number of records that they deleted together. It fails if any of them fails.
        """
        return self._sender().delete(
            topic,
            Selection(key, keys, data, filter),
            PublishOptions(headers, ack, on_ack, sequence, None, correlation_id, command_id, on_delivery),
        )

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
        if self._command_sender is not None:
            self._command_sender.flush(timeout_s)

    def close(self) -> None:
        """End all subscriptions, send queued records and wait for acks as `flush` does.

        Raises:
            AcksMissing: acks have not arrived; their futures fail with this too.
            Stop: a record was not delivered.
            Exception: the exception of a subscription's callback.
        """
        try:
            self._opener.close()
        finally:
            if self._command_sender is not None:
                try:
                    self.flush()
                finally:
                    self._command_sender.close()
                    self._command_sender = None

    def _sender(self) -> CommandSender:
        """The sender of commands, created with the first one: a subscriber needs no producer."""
        sender = self._command_sender
        if sender is None:
            with self._lock:
                sender = self._command_sender
                if sender is None:
                    sender = CommandSender(self.config, self._admin, self._lookup, name=self.name)
                    self._command_sender = sender
        return sender


def _settings(config: Config | None, bootstrap: str | None, topic_prefix: str | None) -> Config:
    """The settings of a client, with the topics of the topic directory if they name none."""
    is_read = config is None
    if config is None:
        config = load(bootstrap=bootstrap, topic_prefix=topic_prefix)
    if topic_prefix not in (None, config.topic_prefix):
        raise ConfigurationError(
            f"topic_prefix is {topic_prefix!r}, and the settings say {config.topic_prefix!r}; give it once"
        )
    if is_read:
        return with_described_topics(config)
    if bootstrap is None:
        return config
    return config.model_copy(update={"kafka": config.kafka | {"bootstrap.servers": bootstrap}})
