"""The largest record that each output's topic accepts, as far as known: each refusal by Kafka corrects it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.errors import SowstreamError
from processor.kafka.properties import PRODUCED_BYTES_MAX
from processor.topics.family import family_specs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.record import Outgoing

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
        known = self._limits[role]
        limit = known
        with contextlib.suppress(SowstreamError, ValueError):
            if self._ask is not None:
                limit = min(known, int(self._ask([topic])[topic].get(_SETTING, known)))
        if limit == known and role == "dlq":
            limit = known // 2  # It takes less than it says, and a dead letter can always be made smaller.
        self._limits[role] = max(_BYTES_MIN, limit)
        if self._limits[role] == known:
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
