"""The publishing calls of the client, named as in AMPS."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack, overload

from processor.client.publish.deleting import Selection
from processor.client.publish.outbox import PLAIN, PublishOptions, is_plain, plain_value
from processor.client.publish.publish_many import ManyRecords
from processor.errors import RecordRejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from processor.client.publish.outbox import Default, DeleteArguments, OnAck, PublishArguments
    from processor.client.publish.publish_many import OnProgress, OnReject
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

    @property
    def is_calling_back(self) -> bool:
        """True on the thread that calls back with acks."""

    def close(self) -> None:
        """Release the connections; futures that are not done fail."""


class PublishCalls:
    """The calls that write. What cannot be sent raises at once; what happens to a command later is in its future."""

    _default: Default | None = None
    """Called with values that no message type writes."""

    def _sender(self) -> ClientSender:
        """The sender of commands, created with the first one: a subscriber needs no producer."""
        raise NotImplementedError

    def _admit(self) -> None:
        """Refuse a command of a closed client; each other one is waited for, until `_dismiss`."""
        raise NotImplementedError

    def _dismiss(self) -> None:
        """Note that this thread has sent its command, or was refused."""
        raise NotImplementedError

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until Kafka has all published records, and every requested ack has arrived."""
        raise NotImplementedError

    def _send(
        self, command: Command, topic: str, data: Value, key: Value, options: PublishOptions
    ) -> Future[Ack] | None:
        """Send a command; values that its message type does not write are replaced first."""
        try:
            self._admit()
            return self._send_admitted(self._sender(), command, topic, data, key, options)
        finally:
            self._dismiss()

    def _send_admitted(
        self, sender: ClientSender, command: Command, topic: str, data: Value, key: Value, options: PublishOptions
    ) -> Future[Ack] | None:
        text = key if key is None or type(key) is str else self._key_text(topic, key)
        if type(data) not in PLAIN:
            data = plain_value(data, self._default)
        elif type(data) is dict or type(data) is list:
            try:
                return sender.send(command, topic, data, text, options)
            except RecordRejected:
                # Only now: most records have nothing to replace, and a message type may write what JSON does not.
                data = plain_value(data, self._default)
        try:
            return sender.send(command, topic, data, text, options)
        except RecordRejected as error:
            if self._default is not None or is_plain(data):
                raise
            remedy = "or give the client a function that replaces such values, as Client(NAME, default=str)"
            raise RecordRejected(error.reason, f"{error.detail}, {remedy}") from None

    def _key_text(self, topic: str, key: Value) -> str:
        """The SOW key of a value, as `Client.get` has it."""
        raise NotImplementedError

    @overload
    def publish(
        self, topic: str, data: Value, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: None = None, **arguments: Unpack[PublishArguments],
    ) -> None: ...  # fmt: skip
    @overload
    def publish(
        self, topic: str, data: Value, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str, expect_version: int | None = None, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def publish(
        self, topic: str, data: Value, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: int, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def publish(
        self, topic: str, data: Value, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str | None = None, expect_version: int | None = None, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack] | None: ...  # fmt: skip
    def publish(
        self,
        topic: str,
        data: Value,
        key: Value = None,
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
            data: a parsed value, a dataclass or a pydantic model; or `bytes` that are an encoded message already and
                are sent unchanged. Of a value that the message type does not write, such as a UUID in JSON, the
                client's `default` makes another one.
            key: the SOW key, as text or as the value of the key field, as `get` has it; None: computed from the key
                fields in the data. A topic with `key: explicit` needs it.
            headers: more headers; they travel on to subscribers.
            ack: the acks to wait for: `persisted`, or several such as `processed,persisted`, whose last one has the
                `version` of the record; `persisted` alone has none.
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
            does not have the expected version, with a Stop if Kafka does not take it or the acks of the topic cannot be
            read on, and with AcksMissing if the client is closed before. Its callbacks run where `on_ack` does.

        Raises:
            RecordRejected: the data has no key, `key` is no key of the topic, or the data cannot be encoded. Nothing
                was sent.
            ConfigurationError: no such topic, header or ack type.
            AcksMissing: 100,000 commands wait for acks, and none has arrived for a minute.
            SowstreamError: the client is closed.
        """
        return self._send(
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
        self, topic: str, data: Value, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: None = None, **arguments: Unpack[PublishArguments],
    ) -> None: ...  # fmt: skip
    @overload
    def delta_publish(
        self, topic: str, data: Value, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str, expect_version: int | None = None, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def delta_publish(
        self, topic: str, data: Value, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: int, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def delta_publish(
        self, topic: str, data: Value, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str | None = None, expect_version: int | None = None, **arguments: Unpack[PublishArguments],
    ) -> Future[Ack] | None: ...  # fmt: skip
    def delta_publish(
        self,
        topic: str,
        data: Value,
        key: Value = None,
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
        return self._send(
            "delta_publish",
            topic,
            data,
            key,
            PublishOptions(
                headers, ack, on_ack, sequence, expiration, correlation_id, command_id, on_delivery, expect_version
            ),
        )

    def publish_many(
        self,
        topic: str,
        records: Iterable[Value],
        *,
        key: Callable[[Any], Value] | None = None,
        delta: bool = False,
        ack: str | None = None,
        on_progress: OnProgress | None = None,
        on_reject: OnReject | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Publish many records; returns when Kafka has all of them and, with `ack`, when each was acknowledged.

        They are taken from the iterable in parts of 10,000, each confirmed before the next: a source of any length
        needs no more memory than that, and a slow Kafka slows it down.

        Args:
            topic: the SOW topic.
            records: the records, as `data` of `publish`; of a DataFrame `frame.to_dict("records")`.
            key: returns the SOW key of a record; None: it is computed from the key fields.
            delta: whether they are changes, as of `delta_publish`; else they are full records.
            ack: the acks to wait for, as `publish`.
            on_progress: called after each part with the number of records that are confirmed so far.
            on_reject: called with each record that is refused: its number, from 0, the record, and the error. None: the
                first one of a part is raised, with its number as a note, when the rest of its part was sent.
            timeout_s: the longest wait for a part, as of `flush`.

        Returns:
            The number of records that were not refused.

        Raises:
            RecordRejected: a record has no key or cannot be encoded, or a worker has rejected it (PublishRejected).
            ConfigurationError: no such topic or ack type.
            BrokerUnavailable: Kafka has not taken the records in time.
            AcksMissing: acks have not arrived in time.
        """
        options = PublishOptions(ack=ack)
        command: Command = "delta_publish" if delta else "publish"

        def send(record: Value) -> Future[Ack] | None:
            return self._send(command, topic, record, None if key is None else key(record), options)

        return ManyRecords(send, partial(self.flush, timeout_s), on_progress, on_reject).publish(records)

    @overload
    def sow_delete(
        self, topic: str, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: None = None, **arguments: Unpack[DeleteArguments],
    ) -> None: ...  # fmt: skip
    @overload
    def sow_delete(
        self, topic: str, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str, expect_version: int | None = None, **arguments: Unpack[DeleteArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def sow_delete(
        self, topic: str, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: None = None, expect_version: int, **arguments: Unpack[DeleteArguments],
    ) -> Future[Ack]: ...  # fmt: skip
    @overload
    def sow_delete(
        self, topic: str, key: Value = None, headers: Mapping[str, str | bytes] | None = None, *,
        ack: str | None = None, expect_version: int | None = None, **arguments: Unpack[DeleteArguments],
    ) -> Future[Ack] | None: ...  # fmt: skip
    def sow_delete(
        self,
        topic: str,
        key: Value = None,
        headers: Mapping[str, str | bytes] | None = None,
        *,
        keys: Iterable[Value] | None = None,
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
            key: the SOW key of one record, as text or as the value of the key field, as `get` has it.
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
        options = PublishOptions(
            headers, ack, on_ack, sequence, None, correlation_id, command_id, on_delivery, expect_version
        )
        try:
            self._admit()
            selection = Selection(
                key if key is None or type(key) is str else self._key_text(topic, key),
                self._key_texts(topic, keys),
                data if type(data) in PLAIN else plain_value(data, self._default),
                filter,
            )
            return self._sender().delete(topic, selection, options)
        finally:
            self._dismiss()

    def _key_texts(self, topic: str, keys: Iterable[Value] | None) -> Sequence[str] | None:
        """The SOW keys of several records; other values than a list are left to the check of the selection."""
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            return keys
        return [key if type(key) is str else self._key_text(topic, key) for key in keys]

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
