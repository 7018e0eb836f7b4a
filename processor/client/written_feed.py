"""The deltas that the worker wrote, from the delta topic: for plain delta subscriptions, which need no state."""

from __future__ import annotations

import json

from processor.client.cut import Cut
from processor.errors import ConfigurationError, RecordRejected, Stop
from processor.record import Name, Record, Value, header_text
from processor.subscribe import Message, Options, Request, Topic
from processor.subscribe.teller import Teller, key_text


class WrittenFeed:
    """Tells each record of a delta topic; deletions are told with `oof` only, and so by another feed."""

    def __init__(self, topic: Topic, cut: Cut, options: Options) -> None:
        """Begin behind a cut, which belongs to it from then on."""
        self._deltas = WrittenDeltas(topic, options)
        self._cut = cut
        self._failure: Stop | None = None
        cut.follow()

    @property
    def is_live(self) -> bool:
        """There is no past."""
        return True

    @property
    def is_over(self) -> bool:
        """It goes on."""
        return False

    def fetch(self, wait_s: float) -> list[Message]:
        """Do one turn."""
        if self._failure is not None:
            raise self._failure
        messages: list[Message] = []
        try:
            for partition, records in self._cut.after(wait_s).batches:
                for record in records:
                    if (message := self._deltas.message(record, partition)) is not None:
                        messages.append(message)  # noqa: PERF401 - what came before an error is kept.
        except Stop as error:
            if not messages:
                raise
            self._failure = error  # Behind what came before it.
        return messages

    def add(self, request: Request, sub_id: str | None) -> str:  # noqa: ARG002
        """Not here: others need the records."""
        raise ConfigurationError(
            "this subscription reads written deltas, which tell nothing of other subscriptions: give it a sub_id when "
            "it is opened, or open the other one by itself"
        )

    def remove(self, sub_id: str) -> None:
        """There is only one, without a name."""
        raise ConfigurationError(f"there is no subscription {sub_id!r}")

    def close(self, *, told: bool) -> None:  # noqa: ARG002
        """End it."""
        self._cut.close()


class WrittenDeltas:
    """Makes messages of what a worker wrote to the delta topic."""

    def __init__(self, topic: Topic, options: Options) -> None:
        self._name = topic.name
        self._codec = topic.codec
        self._no_empties = options.no_empties
        self._teller = Teller(topic, options, delta=True)

    def message(self, record: Record, partition: int) -> Message | None:
        """What is told of a record of the delta topic; None if that is nothing.

        Raises:
            Stop: it is not what a worker writes.
        """
        try:
            return self._message(record)
        except (RecordRejected, UnicodeDecodeError) as error:
            place = f"partition {partition}, offset {record.offset} of its delta topic, key {key_text(record)!r:.100},"
            raise Stop(f"{self._name}: {place} is not what a worker writes: {error}") from error

    def _message(self, record: Record) -> Message | None:
        kind = header_text(record.headers, Name.KIND)
        if record.key is None or record.value is None or kind in ("delete", "expire"):
            return None
        if self._no_empties and header_text(record.headers, Name.EMPTY) == "true":
            return None
        return self._teller.written_delta(
            record,
            self._data(record.value, record),
            delta=kind != "insert" and self._codec.can_delta,
            removed=_pointers(header_text(record.headers, Name.REMOVED)),
        )

    def _data(self, value: bytes, record: Record) -> Value:
        """The delta; some message types say part of it in the headers."""
        codec = self._codec
        if codec.uses_headers and codec.can_delta:
            data = codec.decode_command(value, record.headers or [], is_delta=True)
        else:
            data = codec.decode_own(value)
        if type(data) is not dict and codec.can_delta:
            raise RecordRejected("not_an_object", "a delta is an object")
        return data


def _pointers(text: str | None) -> tuple[str, ...]:
    """The paths that the header `removed` names.

    Raises:
        RecordRejected: it is no array of texts.
    """
    if text is None:
        return ()
    try:
        pointers = json.loads(text)
    except (ValueError, RecursionError):
        pointers = None
    if type(pointers) is not list or not all(type(pointer) is str for pointer in pointers):
        raise RecordRejected("bad_header", f"{Name.REMOVED} is {text!r:.100}, not a JSON array of JSON Pointers")
    return tuple(pointers)
