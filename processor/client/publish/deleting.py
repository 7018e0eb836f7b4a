"""Deletes: which records one is about, the commands that it takes, and one answer for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from processor.client.publish.outbox import Outbox
from processor.errors import ConfigurationError
from processor.filter import compile_filter
from processor.record import Headers, Value
from processor.wire.ack import Ack, AckType
from processor.wire.publisher_headers import delete_by_filter_headers


class Selection(NamedTuple):
    """The records that a `sow_delete` is about: exactly one of these says it."""

    key: str | None = None
    """The SOW key of one record."""
    keys: Sequence[str] | None = None
    """Those of several."""
    data: Value = None
    """A message with the key fields of one record."""
    filter: str | None = None
    """A filter: every record that matches when a worker comes to the command."""


class Delete(NamedTuple):
    """One Kafka record of a delete."""

    record: tuple[bytes | None, None, Headers | None]
    """Key, value and headers."""
    partition: int | None = None
    """Where it goes; None: the key's hash says it."""


def check(selection: Selection, *, has_sequence: bool) -> None:
    """Refuse a selection that cannot be meant.

    Raises:
        ConfigurationError: not exactly one argument; several keys under one sequence number; a filter that cannot be
            read, with the place.
    """
    named = [name for name, value in selection._asdict().items() if value is not None]
    if len(named) != 1:
        given = " and ".join(named) or "none of them"
        raise ConfigurationError(f"sow_delete takes exactly one of key, keys, data and filter; this call has {given}")
    if isinstance(selection.keys, str):
        raise ConfigurationError(f"keys is the text {selection.keys!r:.100}; it is a list of keys, or give key=")
    if selection.keys is not None and has_sequence:
        raise ConfigurationError("sequence numbers one command: delete keys one at a time to number them yourself")
    if selection.filter is not None:
        compile_filter(selection.filter)


def deletes(
    selection: Selection,
    outbox: Outbox,
    partitions: Callable[[], int],
    headers: Mapping[str, str | bytes] | None,
    *,
    correlation_id: str | None,
    command_id: str | None,
    is_anywhere: bool = False,
) -> list[Delete]:
    """The Kafka records of a delete.

    Args:
        selection: which records it is about.
        outbox: makes them.
        partitions: how many the topic has.
        headers: more headers.
        correlation_id: passed on to subscribers.
        command_id: what acks call it.
        is_anywhere: whether a key may be in any partition, as under `foreign_partition: accept`.

    Raises:
        RecordRejected: the data has no key, or an argument has no meaning.
        ConfigurationError: a header that is not a publisher's to give.
    """
    make = partial(outbox.delete, headers=headers, correlation_id=correlation_id, command_id=command_id)
    if selection.filter is None:
        keys = [selection.key] if selection.keys is None else list(dict.fromkeys(selection.keys))
        records = [make(key, selection.data) for key in keys]
        if not is_anywhere:
            return [Delete(record) for record in records]
        return [Delete(record, partition) for record in records for partition in range(partitions())]
    _, _, more = make("", None)
    asked: Headers = [*(more or ()), *delete_by_filter_headers(selection.filter)]
    return [Delete((None, None, asked), partition) for partition in range(partitions())]


class Gathered:
    """The future of a delete that is several commands: done when each of them has been answered.

    Its result is the answer that came last, with the records that all of them have deleted. If any fails, it fails
    as the first of them did: what the others deleted stays so.
    """

    def __init__(self, topic: str, last: AckType, command_id: str | None) -> None:
        """Begin with no command."""
        self.future: Future[Ack] = Future()
        self.future.set_running_or_notify_cancel()
        self._result = Ack("success", None, last, topic, None, None, None, command_id, 0)
        self._error: BaseException | None = None
        self._deleted: int | None = 0
        self._open = 1  # One more than the commands that are not answered, until all are sent.
        self._lock = threading.Lock()

    def add(self, command: Future[Ack]) -> None:
        """Wait for one more."""
        with self._lock:
            self._open += 1
        command.add_done_callback(self._answered)

    def sent(self) -> Future[Ack]:
        """All commands are added."""
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
            self.future.set_result(self._result._replace(sow_key=None, sequence=None, records_deleted=self._deleted))
