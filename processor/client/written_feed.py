"""The deltas that the worker wrote, from the delta topic: for plain delta subscriptions, which need no state."""

from __future__ import annotations

import json

from processor.client.cut import Cut
from processor.errors import ConfigurationError
from processor.record import Name, Record, header_text
from processor.subscribe import Message, Options, Request, Topic
from processor.subscribe.teller import Teller


class WrittenFeed:
    """Tells each record of a delta topic; deletions are told with `oof` only, and so by another feed."""

    def __init__(self, topic: Topic, cut: Cut, options: Options) -> None:
        """Begin behind a cut, which belongs to it from then on."""
        self._deltas = WrittenDeltas(topic, options)
        self._cut = cut
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
        arrived = self._cut.after(wait_s)
        messages = (self._deltas.message(record) for _, records in arrived.batches for record in records)
        return [message for message in messages if message is not None]

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
        self._codec = topic.codec
        self._no_empties = options.no_empties
        self._teller = Teller(topic, options, delta=True)

    def message(self, record: Record) -> Message | None:
        """What is told of a record of the delta topic."""
        kind = header_text(record.headers, Name.KIND)
        if kind in ("delete", "expire") or record.value is None:
            return None
        if self._no_empties and header_text(record.headers, Name.EMPTY) == "true":
            return None
        pointers = header_text(record.headers, Name.REMOVED)
        return self._teller.written_delta(
            record,
            self._data(record.value, record),
            delta=kind != "insert" and self._codec.can_delta,
            removed=() if pointers is None else tuple(json.loads(pointers)),
        )

    def _data(self, value: bytes, record: Record) -> object:
        """The delta; some message types say part of it in the headers."""
        if self._codec.uses_headers and self._codec.can_delta:
            return self._codec.decode_command(value, record.headers or [], is_delta=True)
        return self._codec.decode_own(value)
