"""Resolves the part of a topic to read: from a moment or offsets to another, with all of its records still there."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from processor.errors import ConfigurationError
from spark_integration.reading.as_of import (
    At,
    Facts,
    offsets_of,
    refuse_compacted,
    refuse_deleted,
    resolve_as_of,
    wait_until_decided,
)

_UNLIMITED: Final = "-1"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a topic: of each partition the first offset, and the offset after the last one."""

    begins: Mapping[int, int]
    ends: Mapping[int, int]

    def options(self, topic: str, partitions: Collection[int], *, from_oldest: bool = False) -> dict[str, str]:
        """Options of Spark's Kafka source for some of the partitions.

        Args:
            topic: the Kafka topic.
            partitions: their numbers.
            from_oldest: read the records before the span too.
        """
        ends = {"endingOffsets": _offsets(topic, {number: self.ends[number] for number in partitions})}
        begins = {number: self.begins[number] for number in partitions}
        return ends | {"startingOffsets": "earliest" if from_oldest else _offsets(topic, begins)}


def resolve_span(facts: Facts, since: At | None, until: At | None, *, allow_gaps: bool) -> Span:
    """Resolve the bounds of a read, and make sure that the topic still has all records between them.

    Args:
        facts: offsets and settings of the topic.
        since: a moment: from the first record of that time or later; or the first offset of each partition. None: the
            oldest record that the topic still has.
        until: a moment or offsets as `at` of `read_sow`; None: everything committed now.
        allow_gaps: accept that retention or compaction may have removed records of the span.

    Raises:
        ConfigurationError: a bound is invalid, or the topic no longer has all records; with the reason.
    """
    oldest = facts.begins()
    with _named("until"):
        ends = facts.committed_ends() if until is None else _until(facts, until, allow_gaps=allow_gaps)
    if since is None:
        return Span({p: min(oldest[p], end) for p, end in ends.items()}, ends)
    with _named("since"):
        begins = _since(facts, since, allow_gaps=allow_gaps)
    if late := [p for p in ends if begins[p] > ends[p]]:
        raise ConfigurationError(
            f"since is after until: partition {late[0]} of {facts.topic} would be read from offset "
            f"{begins[late[0]]} to {ends[late[0]]}"
        )
    return Span(begins, ends)


def _until(facts: Facts, until: At, *, allow_gaps: bool) -> Mapping[int, int]:
    return resolve_as_of(facts, until, allow_compacted=allow_gaps).ends


def _since(facts: Facts, since: At, *, allow_gaps: bool) -> dict[int, int]:
    oldest = facts.begins()
    begins = offsets_of(facts, since)
    if "compact" in (facts.setting("cleanup.policy") or "compact"):
        refuse_deleted(facts, begins)
        if not allow_gaps:
            refuse_compacted(facts, begins)
    elif not allow_gaps:
        _refuse_expired(facts, since, begins, oldest)
    wait_until_decided(facts, begins)
    return {p: max(begin, oldest[p]) for p, begin in begins.items()}


def _refuse_expired(facts: Facts, since: At, begins: Mapping[int, int], oldest: Mapping[int, int]) -> None:
    """Refuse a begin from after which retention may have removed records."""
    if isinstance(since, Mapping):
        gone = {p: oldest[p] for p, begin in begins.items() if begin < oldest[p]}
    elif _is_kept(facts, since.timestamp() * 1000):
        return
    else:
        gone = {p: oldest[p] for p, begin in begins.items() if begin <= oldest[p] and oldest[p] > 0}
    if gone:
        partition, offset = min(gone.items())
        raise ConfigurationError(
            f"at is further back than {facts.topic} is sure to be whole: partition {partition} begins at offset "
            f"{offset}, and retention may have removed changes before it; begin later, leave `at` out for what is "
            "there, or say allow_gaps=True"
        )


def _is_kept(facts: Facts, since_ms: float) -> bool:
    """Return whether retention keeps all records from a time on."""
    kept_ms, kept_bytes = facts.setting("retention.ms"), facts.setting("retention.bytes")
    if kept_ms is None or kept_bytes != _UNLIMITED:
        return False
    return kept_ms == _UNLIMITED or since_ms > time.time() * 1000 - int(kept_ms)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Let the errors about `at` name the argument of the caller."""
    try:
        yield
    except ConfigurationError as error:
        text = str(error).replace("`at`", f"`{name}`").replace("at={", f"{name}={{")
        text = text.replace("allow_compacted", "allow_gaps")
        raise ConfigurationError(name + text[2:] if text.startswith("at") else text) from None


def _offsets(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
