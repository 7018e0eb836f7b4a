"""Limits of a partition's output: the largest record of each topic, dead letters cut to it, and bytes that may wait.

The largest record of a topic is known as far as the settings have it; each refusal by Kafka corrects it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import ProcessorFailed, SowstreamError
from processor.kafka.properties import PRODUCED_BYTES_MAX
from processor.record import is_reject_reason
from processor.topics.family import family_specs
from processor.wire.dead_letter import cut_headers, reason_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.record import Headers, Outgoing, Record


RECORD_BYTES: Final = 256
"""Most bytes of Kafka's format around the key, the value and the headers of a record that is sent alone."""
HEADER_BYTES: Final = 10
"""Most bytes of Kafka's format around each header."""

_BYTES_MIN: Final = 16 * 1024
"""Smallest limit that is believed: a dead letter needs some of it for its headers."""
_SETTING: Final = "max.message.bytes"


class TooLarge(NamedTuple):
    """An output record that is larger than its topic accepts."""

    role: str
    size_bytes: int
    limit_bytes: int


def size_of(outgoing: Outgoing) -> int:
    """Estimate the bytes of a record in Kafka, not compressed; never too low."""
    key, value, headers = outgoing
    more = sum([len(name) * 3 + len(text or b"") + HEADER_BYTES for name, text in headers or ()])
    return RECORD_BYTES + len(key or b"") + len(value or b"") + more


class OutputLimits:
    """The limits of one pipeline's outputs, and how many bytes of them may wait in memory."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        batch_bytes_max: int = sys.maxsize,
        ask: Callable[[Sequence[str]], Mapping[str, Mapping[str, str]]] | None = None,
    ) -> None:
        """Begin with the limits of the settings.

        Args:
            pipeline: the pipeline of the outputs.
            batch_bytes_max: outputs of each partition that may wait in memory.
            ask: asks Kafka for the settings of topics; None: Kafka is not asked.
        """
        self.batch_bytes_max = batch_bytes_max
        self._ask = ask
        roles = (*pipeline.roles, *pipeline.outlets)
        self._roles: dict[str, str] = {pipeline.output(role): role for role in roles}
        topic = pipeline.topic
        (letters,) = family_specs(
            pipeline.name,
            ("dlq",),
            partitions=topic.partitions,
            settings=topic.config,
            max_record_bytes=topic.max_record_bytes,
            names=pipeline.names,
        )
        letter_bytes = int(letters.config[_SETTING])  # As it is created; where it takes less, that is learnt.
        self._first: dict[str, int] = dict.fromkeys(roles, PRODUCED_BYTES_MAX)
        self._first["dlq"] = max(_BYTES_MIN, min(letter_bytes, PRODUCED_BYTES_MAX))
        self._limits = dict(self._first)

    def of(self, role: str) -> int:
        """Return the largest record that an output's topic accepts, in bytes."""
        return self._limits[role]

    @property
    def smallest(self) -> int:
        """The smallest limit of all: no batch of several records should be larger."""
        return min(self._limits.values())

    def role_of(self, topic: str) -> str | None:
        """Return the output of a Kafka topic; None for a topic of another family."""
        return self._roles.get(topic)

    def refused(self, topic: str) -> bool:
        """Learn the limit of a topic that refused a record or a batch for its size; return whether it was new."""
        role = self._roles.get(topic)
        if role is None:
            return False
        former = self._limits[role]
        limit = former
        with contextlib.suppress(SowstreamError, ValueError):
            if self._ask is not None:
                limit = min(former, int(self._ask([topic])[topic].get(_SETTING, former)))
        if limit == former and role == "dlq":
            limit = former // 2  # It takes less than it says, and a dead letter can always be made smaller.
        self._limits[role] = max(_BYTES_MIN, limit)
        if self._limits[role] == former:
            return False
        import structlog  # noqa: PLC0415 - rare, and costly to import in each Python process of Spark

        log = structlog.stdlib.get_logger("sowstream.output")
        log.warning("a topic takes smaller records than was known", topic=topic, bytes_max=self._limits[role])
        return True

    def forget(self, role: str) -> None:
        """Forget the learnt limit of an output: its topic may accept more by now."""
        self._limits[role] = self._first[role]

    def largest(self, outputs: Mapping[str, Sequence[Outgoing]]) -> TooLarge | None:
        """Return an output record that is larger than its topic accepts; None: all fit. Dead letters always fit."""
        for role, records in outputs.items():
            limit = self._limits[role]
            for outgoing in records if role != "dlq" else ():
                if (size := size_of(outgoing)) > limit:
                    return TooLarge(role, size, limit)
        return None


TURN_S: Final = 0.1
"""Longest time for which a processor receives records before outputs are sent and other threads have a turn."""

_FIRST_RECORDS: Final = 64
_EXCESS: Final = 2  # So many times what may wait is made by one slice, at most, unless it is of one record.


class WaitingOutput:
    """Counts the bytes that are forwarded and not sent yet, and limits the records that may make more of them.

    A processor that asks `is_enough` receives all records that there are. One that does not ask is bounded by the
    size of its slices: few records at first, then more of them while its outputs are small and its calls are short.
    """

    def __init__(self, bytes_max: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing waiting.

        Args:
            bytes_max: how much may wait.
            clock_s: a clock that does not jump, in seconds.
        """
        self.size_bytes = 0
        """Bytes of the values that wait."""
        self.records = 0
        """Number of records that wait; deletes have no bytes."""
        self._bytes_max = bytes_max
        self._clock_s = clock_s
        self._records_max = _FIRST_RECORDS
        self._until_s = sys.float_info.max  # No time counts before the first turn.
        self._began_s = 0.0
        self._began_bytes = 0
        self._records = 0  # Of the slice that a processor has in hand; 0: it has none.

    def begin_turn(self) -> None:
        """Start the clock of a turn: a processor is about to receive records."""
        self._until_s = self._clock_s() + TURN_S

    def end_turn(self) -> None:
        """End a turn before its time: its processor takes no further record."""
        self._until_s = -sys.float_info.max

    def is_enough(self, more_bytes: int = 0) -> bool:
        """Return whether so much waits, or the turn has lasted so long, that no more should be made now."""
        return self.size_bytes + more_bytes >= self._bytes_max or self._clock_s() >= self._until_s

    def add(self, size_bytes: int) -> None:
        """Add bytes that wait.

        Raises:
            ProcessorFailed: one slice makes far too much: it is rolled back, and the next one is smaller.
        """
        self.size_bytes += size_bytes
        if self._records > 1 and self.size_bytes - self._began_bytes > _EXCESS * self._bytes_max:
            raise ProcessorFailed(
                f"{self._records} records made more than {_EXCESS * self._bytes_max} bytes of outputs"
            )

    def sent(self) -> None:
        """Count nothing as waiting any more: all was sent."""
        self.size_bytes = self.records = 0

    def begin_slice(self, records: int) -> int:
        """Return how many of so many records a processor receives at once."""
        self._records = min(records, self._records_max)
        self._began_bytes, self._began_s = self.size_bytes, self._clock_s()
        return self._records

    def end_slice(self) -> None:
        """End a slice: the next one has fewer records if this one made much output or took long."""
        records, self._records = self._records, 0
        share = (self.size_bytes - self._began_bytes) / self._bytes_max
        share = max(share, (self._clock_s() - self._began_s) / TURN_S)
        if share > 0.5:
            self._records_max = max(1, min(records // 2, int(records / share)))
        elif share < 0.25 and records == self._records_max:
            self._records_max *= 2

    def rewound(self) -> None:
        """Forget the bytes that waited; the next slice is smaller, as the one that failed may have been too large."""
        if self._records:
            self._records_max = max(1, self._records // 4)
        self.size_bytes = self.records = self._records = 0


KEPT_BYTES_MAX: Final = 1024 * 1024
"""Most bytes that are kept of a value that does not fit."""

_KEY_BYTES_MAX: Final = 4096  # Of a key that does not fit.
_DETAIL_BYTES_MAX: Final = 4096


def dead_letter(record: Record, reason: str, detail: str, source: str, bytes_max: int) -> Outgoing:
    """Return the full record with the reason; where that is too large, its beginning, its size and its checksum.

    Args:
        record: the input record.
        reason: why it is rejected: one of `RejectReason`, or a plug-in's own word.
        detail: the same as a sentence.
        source: `topic/partition/offset` of it.
        bytes_max: the largest record that the dead-letter topic takes.

    Raises:
        ValueError: the reason is no such word.
    """
    if not is_reject_reason(reason):
        raise ValueError(
            f"{reason!r:.100} is no reject reason: it is a word of lower-case letters, digits and '_', as a label of "
            "metrics; the rest belongs into the detail"
        )
    headers = list(record.headers or ())
    whole: Outgoing = record.key, record.value, [*headers, *_why(reason, detail, source)]
    if size_of(whole) <= bytes_max:
        return whole
    value, key = record.value or b"", record.key
    cut = cut_headers(value)
    left_out = []
    if size_of((key, None, [*headers, *_why(reason, detail, source), *cut])) > bytes_max // 2:
        if headers:
            left_out.append(f"its {len(headers)} headers are left out")
        headers = []
        if key is not None and len(key) > _KEY_BYTES_MAX:
            left_out.append(f"its key of {len(key)} bytes is cut")
            key = key[:_KEY_BYTES_MAX]
    more = "".join(f"; {what}" for what in left_out)
    kept: Headers = [*headers, *_why(reason, detail, source, more), *cut]
    room = max(0, min(KEPT_BYTES_MAX, bytes_max - size_of((key, None, kept))))
    return key, None if record.value is None else value[:room], kept


def _why(reason: str, detail: str, source: str, more: str = "") -> Headers:
    """Return the headers that every dead letter has."""
    text = _cut(detail, _DETAIL_BYTES_MAX - len(more))
    return reason_headers(reason, text + more.encode(), source)


def _cut(detail: str, bytes_max: int) -> bytes:
    """Shorten a sentence to the text of a header: a foreign exception may quote the full record."""
    text = detail.encode(errors="replace")
    return text if len(text) <= bytes_max else text[:bytes_max].decode(errors="ignore").encode()
