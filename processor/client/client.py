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

from processor.client.publish.deleting import Selection
from processor.client.publish.outstanding import OnAck
from processor.client.publish.publishing import Publishing
from processor.client.subscribe.calls import Subscribing
from processor.client.subscribe.opening import Reading
from processor.client.topic_lookup import TopicLookup, warn_of_contradictions
from processor.config import Config, load
from processor.errors import ConfigurationError, Stop
from processor.kafka.admin.admin import Admin
from processor.kafka.producers.publisher import Delivered
from processor.record import Value
from processor.shared_topics.directory import with_described_topics
from processor.wire.ack import Ack

_FLUSH_AFTER_ERROR_S = 5.0


class Client(Subscribing):
    """A connection to one cluster. The names are those of AMPS' client.

    Its methods may be called from any thread. What a subscription wants of threads, it says itself. Acks are read on a
    thread of their own, which starts with the first command that asks for one.
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
        """Create a client. With settings that name topics, nothing is connected until it is needed.

        Args:
            name: how it calls itself to the brokers.
            config: the settings; None reads `./sowstream.yaml` and the environment. Where these name no topics, but
                say where Kafka is, the topics are read from the topic directory there, once.
            view_dir: where the records that subscriptions need to know are kept between runs, so that the next one
                reads only what came since; one process may use it at a time. None: they are read anew by each
                subscription, and kept in memory, or in a temporary directory where they are many.
            bootstrap: Kafka's address; beats the settings. Without a settings file it is all that is needed.
            topic_prefix: the first part of the installation's Kafka names; for a client without settings.
            skip_unreadable: whether snapshots and subscriptions leave out SOW records that cannot be read, as if there
                were none, and say so in the log and in `unreadable`; else the first one ends them. Each record is then
                parsed twice. Not with `view_dir`.

        Raises:
            ConfigurationError: the settings cannot be used, or name no topics where there is no topic directory.
            BrokerUnavailable: the topics are to be read from the topic directory, and Kafka does not answer.
        """
        self.name = name
        self.config = _settings(config, bootstrap, topic_prefix)
        self._admin = Admin(self.config.kafka)
        compare = None if self.config.is_from_directory else partial(warn_of_contradictions, self.config, self._admin)
        self._lookup = TopicLookup(self._admin, compare)
        directory = None if view_dir is None else Path(view_dir)
        self._reading = Reading(
            self.config,
            self._admin,
            self._lookup,
            name=name,
            view_dir=directory,
            skips_unreadable=skip_unreadable,
        )
        self._publishing: Publishing | None = None
        self._lock = threading.Lock()

    @property
    def unreadable(self) -> dict[str, dict[str, str]]:
        """The SOW records that were left out (`skip_unreadable`): of each topic the keys, each with the reason."""
        skipped = self._reading.skipped or {}
        return {topic: dict(of_topic.reasons) for topic, of_topic in skipped.items() if of_topic.reasons}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # What went wrong first is what the caller must hear of; what was sent still gets a moment to arrive.
        with contextlib.suppress(Exception):
            self._reading.close()
        if self._publishing is not None:
            with contextlib.suppress(Stop):
                self._publishing.deliver(_FLUSH_AFTER_ERROR_S)
            self._publishing.close()
            self._publishing = None

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
        """Store a whole record, in place of the one before.

        Args:
            topic: the SOW topic.
            data: a parsed value, or `bytes` that are a message already and are sent as they are.
            key: the SOW key; None: made of the key fields in the data. A topic with `key: explicit` needs it.
            headers: more headers; they travel on to subscribers.
            ack: the acks to wait for: `persisted`, or several such as `processed,persisted`.
            on_ack: told each of them, on the thread that reads acks: it must be quick and not wait for anything; it
                may publish. What it raises is logged.
            sequence: the publisher's own growing number. Of what the client named `name` sends to one partition, a
                worker takes only what is above all before, so that a publisher may repeat after a crash what it is
                not sure of; one process at a time may use the name so. Without it, commands that want acks are
                numbered from 1 under a name of this instance's own, `<name>-<8 hex digits>`: then two processes with
                one name do not drop each other's records.
            expiration: seconds until the record expires, counted anew by each update; 0 is never. None: the topic's.
            correlation_id: passed on to subscribers; base64 characters only.
            command_id: what its acks call it.
            on_delivery: told when Kafka has it, or what went wrong; without it and without `ack`, `flush` raises what
                went wrong. It runs within any publish or flush, or on the thread that reads acks.

        Returns:
            With `ack`, a future of the last ack: of `persisted` before `completed`, `processed` and `received`. It
            fails with PublishRejected if a worker rejects the record, with a Stop if Kafka does not take it, and with
            AcksMissing if the client is closed before. Its callbacks run where `on_ack` does.

        Raises:
            RecordRejected: the data has no key, or cannot be written. Nothing was sent.
            ConfigurationError: no such topic, header or ack type.
            AcksMissing: 100,000 commands wait for acks, and none has come for a minute.
        """
        return self._sender().send(
            "publish",
            topic,
            data,
            key=key,
            headers=headers,
            on_delivery=on_delivery,
            ack=ack,
            on_ack=on_ack,
            sequence=sequence,
            expiration=expiration,
            correlation_id=correlation_id,
            command_id=command_id,
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
            key=key,
            headers=headers,
            on_delivery=on_delivery,
            ack=ack,
            on_ack=on_ack,
            sequence=sequence,
            expiration=expiration,
            correlation_id=correlation_id,
            command_id=command_id,
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
        """Remove records: by exactly one of key, keys, data and filter. Other arguments and errors as `publish`.

        Args:
            topic: the SOW topic.
            key: the SOW key of one record.
            headers: more headers; they travel on to subscribers.
            keys: the SOW keys of several records: one command for each.
            data: a message with the key fields of one record.
            filter: every record that matches it, as each worker comes to the command: what was published before it on
                a partition counts, what is published later does not. One command goes to each partition.
            ack: as `publish`; of deletes also `stats`, which brings the number of deleted records.
            on_ack: called with each ack of each command.
            sequence: as `publish`; not with keys.
            correlation_id: passed on to subscribers.
            command_id: what its acks call it.
            on_delivery: called for each Kafka record of it.

        Returns:
            With `ack`, a future that is done when every command has been answered; with `stats` its result says in
            `records_deleted` how many records they deleted together. It fails if any of them does.
        """
        return self._sender().delete(
            topic,
            Selection(key, keys, data, filter),
            headers=headers,
            on_delivery=on_delivery,
            ack=ack,
            on_ack=on_ack,
            sequence=sequence,
            correlation_id=correlation_id,
            command_id=command_id,
        )

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until Kafka has all that was published, and every ack asked for has come.

        Args:
            timeout_s: the longest wait, for both together. None: for Kafka without end, for acks until none has come
                for a minute.

        Raises:
            BrokerUnavailable: Kafka has not taken it in time.
            AcksMissing: acks have not come in time. They may still: flush again, or start a worker.
            Stop: something was not delivered.
        """
        if self._publishing is not None:
            self._publishing.flush(timeout_s)

    def close(self) -> None:
        """Send what is still to be sent, wait for acks as `flush`, and end all subscriptions.

        Raises:
            AcksMissing: acks have not come; their futures fail with this too.
            Stop: something was not delivered.
            Exception: what a callback of a subscription raised.
        """
        try:
            self._reading.close()
        finally:
            if self._publishing is not None:
                try:
                    self.flush()
                finally:
                    self._publishing.close()
                    self._publishing = None

    def _sender(self) -> Publishing:
        """Made with the first publish: a subscriber needs no producer."""
        made = self._publishing
        if made is None:
            with self._lock:
                made = self._publishing
                if made is None:
                    made = Publishing(self.config, self._admin, self._lookup, name=self.name)
                    self._publishing = made
        return made


def _settings(config: Config | None, bootstrap: str | None, topic_prefix: str | None) -> Config:
    """The settings of a client; the topics come from the topic directory where the settings name none."""
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
