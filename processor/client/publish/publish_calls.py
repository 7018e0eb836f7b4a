"""The publishing calls of the client, named as in AMPS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self, Unpack, overload

from processor.client.publish.deleting import Selection
from processor.client.publish.outbox import PublishOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from processor.client.publish.outbox import DeleteArguments, OnAck, PublishArguments
    from processor.kafka.clients.publisher import Delivered
    from processor.record import Command, Value
    from processor.wire.ack import Ack


class ClientSender(Protocol):
    """Sends the commands of a client: `CommandSender`, or `GatewaySender` over a gateway. Any thread."""

    def send(
        self, command: Command, topic: str, data: Value, key: str | None, options: PublishOptions
    ) -> Future[Ack] | None:
        """Send one command other than `sow_delete`. Arguments, future and errors as `Client.publish`."""

    def delete(self, topic: str, selection: Selection, options: PublishOptions) -> Future[Ack] | None:
        """Send the commands of a delete. Arguments, future and errors as `Client.sow_delete`."""

    def mark(self, topic: str) -> int | None:
        """Return the highest number of this client's name that was taken. Errors as `Client.mark`."""

    def named(self, name: str) -> Self:
        """A sender of commands that are numbered under another name, over the same connections."""

    def flush(self, timeout_s: float | None) -> None:
        """Wait until all commands were delivered and acknowledged. Errors as `Client.flush`."""

    def deliver(self, timeout_s: float) -> None:
        """Wait until all commands were delivered. Errors as `Client.flush`."""

    def close(self) -> None:
        """Release the connections; futures that are not done fail."""


class PublishCalls:
    """The calls that write. What cannot be sent raises at once; what happens to a command later is in its future."""

    def _sender(self) -> ClientSender:
        """The sender of commands, created with the first one: a subscriber needs no producer."""
        raise NotImplementedError

    @overload
    def publish(
        self, topic: str, data: Value, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: None = None, **arguments: Unpack[PublishArguments],
    ) -> None: ...  # fmt: skip
    @overload
    def publish(
        self, topic: str, data: Value, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str, expect_version: int | None = None, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def publish(
        self, topic: str, data: Value, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: int, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def publish(
        self, topic: str, data: Value, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str | None = None, expect_version: int | None = None, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack] | None: ...  # fmt: skip
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
        expect_version: int | None = None,
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
            expect_version: carry out the command only if the record has this version, 0 for no record; else the future
                fails with VersionConflict. Without `ack` it asks for `processed`; `ack="none"` asks for nothing.

        Returns:
            With `ack` or `expect_version`, a future of the last ack: `persisted` before `completed`, `processed` and
            `received`. It fails with PublishRejected if a worker rejects the record, with VersionConflict if the record
            does not have the expected version, with a Stop if Kafka does not take it, and with AcksMissing if the
            client is closed before. Its callbacks run where `on_ack` does.

        Raises:
            RecordRejected: the data has no key, or cannot be encoded. Nothing was sent.
            ConfigurationError: no such topic, header or ack type.
            AcksMissing: 100,000 commands wait for acks, and none has arrived for a minute.
            SowstreamError: the client's `with` block has ended.
        """
        return self._sender().send(
            "publish",
            topic,
            data,
            key,
            PublishOptions(
                headers, ack, on_ack, sequence, expiration, correlation_id, command_id, on_delivery, expect_version
            ),
        )

    @overload
    def delta_publish(
        self, topic: str, data: Value, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: None = None, **arguments: Unpack[PublishArguments],
    ) -> None: ...  # fmt: skip
    @overload
    def delta_publish(
        self, topic: str, data: Value, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str, expect_version: int | None = None, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def delta_publish(
        self, topic: str, data: Value, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: int, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def delta_publish(
        self, topic: str, data: Value, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str | None = None, expect_version: int | None = None, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack] | None: ...  # fmt: skip
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
        expect_version: int | None = None,
    ) -> Future[Ack] | None:
        """Merge changes into a record. Arguments, future and errors as `publish`."""
        return self._sender().send(
            "delta_publish",
            topic,
            data,
            key,
            PublishOptions(
                headers, ack, on_ack, sequence, expiration, correlation_id, command_id, on_delivery, expect_version
            ),
        )

    @overload
    def sow_delete(
        self, topic: str, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: None = None, **arguments: Unpack[DeleteArguments],
    ) -> None: ...  # fmt: skip
    @overload
    def sow_delete(
        self, topic: str, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str, expect_version: int | None = None, **arguments: Unpack[DeleteArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def sow_delete(
        self, topic: str, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: int, **arguments: Unpack[DeleteArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def sow_delete(
        self, topic: str, key: str | None = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str | None = None, expect_version: int | None = None, **arguments: Unpack[DeleteArguments],
    ) -> Future[Ack] | None: ...  # fmt: skip
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
        expect_version: int | None = None,
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
            expect_version: as `publish`; with key or data.

        Returns:
            With `ack`, a future that is done when every command was acknowledged; with `stats`, `records_deleted` of
            its result is the number of records that they deleted together. It fails if any of them fails.
        """
        return self._sender().delete(
            topic,
            Selection(key, keys, data, filter),
            PublishOptions(
                headers, ack, on_ack, sequence, None, correlation_id, command_id, on_delivery, expect_version
            ),
        )

    def mark(self, topic: str) -> int | None:
        """Return the highest `sequence` that workers have taken from this client's name, over all partitions.

        A publisher that has lost its own count goes on above it. A partition that has only lower numbers of this client
        takes each number above those as well. The mark topic is read once, as far as it is committed.

        Args:
            topic: the SOW topic.

        Returns:
            The number; None if none was taken, or its mark was forgotten.

        Raises:
            ConfigurationError: no such topic, no right to read its mark topic, or the client is one of a gateway.
            BrokerUnavailable: no answer in time.
            Stop: the mark topic cannot be read.
        """
        return self._sender().mark(topic)
