"""Deletes: the selection of records, the Kafka records to send, and one result for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from processor.client.publish.outbox import Outbox, PublishOptions
from processor.errors import ConfigurationError
from processor.filter import compile_filter
from processor.kafka.own_process import AckFuture
from processor.record import Headers, Value
from processor.wire.ack import Ack, AckType
from processor.wire.publisher_headers import delete_by_filter_headers


class Selection(NamedTuple):
    """The records that a `sow_delete` selects: exactly one field is set."""

    key: str | None = None
    """The SOW key of one record."""
    keys: Sequence[str] | None = None
    """The SOW keys of several records."""
    data: Value = None
    """A message with the key fields of one record."""
    filter: str | None = None
    """A filter: selects every record that matches when a worker processes the command."""


class DeleteRecord(NamedTuple):
    """One Kafka record of a delete command."""

    record: tuple[bytes | None, None, Headers | None]
    """Key, value and headers."""
    partition: int | None = None
    """The partition to send to; None: the one that the key's hash selects."""


def check(selection: Selection, *, has_sequence: bool, is_conditional: bool = False) -> None:
    """Reject an invalid selection.

    Raises:
        ConfigurationError: not exactly one argument; several keys under one sequence number or one expected version; a
            filter that cannot be read, with the place.
    """
    named = [name for name, value in selection._asdict().items() if value is not None]
    if len(named) != 1:
        fields = " and ".join(named) or "none of them"
        raise ConfigurationError(f"sow_delete takes exactly one of key, keys, data and filter; this call has {fields}")
    if selection.keys is not None and not isinstance(selection.keys, Iterable):
        raise ConfigurationError(f"keys is {selection.keys!r:.100}; it is a list of SOW keys, or give key= for one")
    if isinstance(selection.keys, str):
        raise ConfigurationError(f"keys is the text {selection.keys!r:.100}; it is a list of keys, or give key=")
    if selection.keys is not None and has_sequence:
        raise ConfigurationError("sequence numbers one command: delete keys one at a time to number them yourself")
    if is_conditional and (selection.keys is not None or selection.filter is not None):
        raise ConfigurationError("expect_version is for one record: delete it by key= or data=")
    if selection.filter is not None:
        compile_filter(selection.filter)


def deletes(
    selection: Selection,
    outbox: Outbox,
    partitions: Callable[[], int],
    options: PublishOptions,
    *,
    is_anywhere: bool = False,
) -> list[DeleteRecord]:
    """The Kafka records of one `sow_delete`.

    Args:
        selection: the records to delete.
        outbox: creates the Kafka records.
        partitions: returns the topic's number of partitions.
        options: the publisher's options.
        is_anywhere: whether a key may be in any partition, as under `foreign_partition: accept`.

    Raises:
        RecordRejected: the data has no key, or an argument is invalid.
        ConfigurationError: a header that a publisher may not set.
    """

    def make(key: str | None, data: Value) -> tuple[bytes, None, Headers | None]:
        return outbox.delete(key, data, options.headers, **options.of_headers())

    if selection.filter is None:
        keys = [selection.key] if selection.keys is None else list(dict.fromkeys(selection.keys))
        records = [make(key, selection.data) for key in keys]
        if not is_anywhere:
            return [DeleteRecord(record) for record in records]
        return [DeleteRecord(record, partition) for record in records for partition in range(partitions())]
    _, _, more = make("", None)
    asked: Headers = [*(more or ()), *delete_by_filter_headers(selection.filter)]
    return [DeleteRecord((None, None, asked), partition) for partition in range(partitions())]


class CombinedAcks:
    """The future of a delete that consists of several commands: done when each of them was acknowledged.

    Its result is the last ack, with the number of records that all commands deleted together. If any command fails, it
    fails with the first error; the deletes of the other commands remain.
    """

    def __init__(self, topic: str, last: AckType, command_id: str | None) -> None:
        """Start without commands."""
        self.future: Future[Ack] = AckFuture()
        self.future.set_running_or_notify_cancel()
        self._result = Ack("success", None, last, topic, None, None, None, command_id, 0)
        self._error: BaseException | None = None
        self._deleted: int | None = 0
        self._open = 1  # The commands without result, plus one until all are sent.
        self._lock = threading.Lock()

    def add(self, command: Future[Ack]) -> None:
        """Wait for one more command."""
        with self._lock:
            self._open += 1
        command.add_done_callback(self._answered)

    def sent(self) -> Future[Ack]:
        """Close the list of commands; returns the combined future."""
        self._close()
        return self.future

    def _answered(self, command: Future[Ack]) -> None:
        with self._lock:
            if (error := command.exception()) is not None:
                self._error = self._error or error
            else:
                self._result = ack = command.result()
                counts = (self._deleted, ack.records_deleted)
                self._deleted = None if None in counts else sum(count or 0 for count in counts)
        self._close()

    def _close(self) -> None:
        with self._lock:
            self._open -= 1
            is_over = self._open == 0
        if not is_over:
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(
                self._result._replace(sow_key=None, sequence=None, records_deleted=self._deleted, version=None)
            )
