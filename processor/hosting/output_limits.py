"""The largest record that each output takes, as far as it is known: what Kafka refuses teaches it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from processor.errors import SowstreamError
from processor.kafka.properties import PRODUCED_BYTES_MAX
from processor.topics.family import family_specs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.record import Outgoing

log = structlog.stdlib.get_logger("sowstream.output")

RECORD_BYTES: Final = 256
"""What Kafka's format takes at most beside the key, the value and the headers of a record that is sent alone."""
HEADER_BYTES: Final = 10
"""The same for each header."""

_BYTES_MIN: Final = 16 * 1024
"""A limit below this is not believed: a dead letter needs some of it for its headers."""
_SETTING: Final = "max.message.bytes"


class TooLarge(NamedTuple):
    """An output that is larger than its topic takes."""

    role: str
    size_bytes: int
    limit_bytes: int


def size_of(outgoing: Outgoing) -> int:
    """About how many bytes a record takes in Kafka, not compressed; never less than it does."""
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
        """Believe the settings.

        Args:
            pipeline: whose outputs they are.
            batch_bytes_max: outputs of each partition that may wait in memory.
            ask: asks Kafka for the settings of topics; None: nobody is asked.
        """
        self.batch_bytes_max = batch_bytes_max
        self._ask = ask
        self._roles: dict[str, str] = {pipeline.output(role): role for role in pipeline.roles}
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
        self._first: dict[str, int] = dict.fromkeys(pipeline.roles, PRODUCED_BYTES_MAX)
        self._first["dlq"] = max(_BYTES_MIN, min(letter_bytes, PRODUCED_BYTES_MAX))
        self._limits = dict(self._first)

    def of(self, role: str) -> int:
        """The largest record that an output takes, in bytes."""
        return self._limits[role]

    @property
    def smallest(self) -> int:
        """The least of all: no batch of several records should be larger."""
        return min(self._limits.values())

    def role_of(self, topic: str) -> str | None:
        """Which output a Kafka topic is; None: it is none of ours."""
        return self._roles.get(topic)

    def refused(self, topic: str) -> bool:
        """A record, or a batch, was larger than this topic takes: learn its limit. Whether anything was learnt."""
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
        log.warning("a topic takes smaller records than was known", topic=topic, bytes_max=self._limits[role])
        return True

    def forget(self, role: str) -> None:
        """Forget what was learnt of an output: it may take more by now."""
        self._limits[role] = self._first[role]

    def largest(self, outputs: Mapping[str, Sequence[Outgoing]]) -> TooLarge | None:
        """One of these outputs that is larger than its topic takes; None: all fit. Dead letters are made to fit."""
        for role, records in outputs.items():
            limit = self._limits[role]
            for outgoing in records if role != "dlq" else ():
                if (size := size_of(outgoing)) > limit:
                    return TooLarge(role, size, limit)
        return None
