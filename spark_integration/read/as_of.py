"""Resolves the end of a read, and its beginning: moments or offsets for which the topic still has all records."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.errors import ConfigurationError
from spark_integration.foundation.options import offsets_option

if TYPE_CHECKING:
    from spark_integration.read.topic_facts import TopicFacts

At: TypeAlias = dt.datetime | Mapping[int, int]
"""A moment, with its time zone: every record with an earlier timestamp. Or the ending offset of each partition."""

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)
_OPEN_TIMEOUT_S: Final = 15.0
"""Timeout for transactions that are open before the end; those of workers are open for less than a second."""
_WAIT_S: Final = 0.05
_NOTHING: Final = "the table would be empty without saying so"


@dataclass(frozen=True, slots=True)
class AsOf:
    """A consistent end of a read: all committed records before it are read, and none after it."""

    ends: Mapping[int, int]
    """The offset after the last one of each partition."""
    time_ms: int | None
    """The requested moment, milliseconds since the epoch; None where offsets were requested."""

    def ending_offsets(self, topic: str, partitions: Iterable[int]) -> str:
        """The value of Spark's option `endingOffsets` for these partitions."""
        return offsets_option(topic, {partition: self.ends[partition] for partition in partitions})


def resolve_as_of(facts: TopicFacts, at: At, *, allow_compacted: bool) -> AsOf:
    """Resolve the end of a read, and make sure that the topic still has all records before it.

    Args:
        facts: offsets and settings of the topic.
        at: the requested end.
        allow_compacted: accept that compaction may have removed records from before the end.

    Raises:
        ConfigurationError: `at` is invalid, or the topic no longer has all records before it; with the reason.
    """
    time_ms = None if isinstance(at, Mapping) else _time_ms(at)
    ends = offsets_of(facts, at)
    refuse_deleted(facts, ends)
    _refuse_empty(facts, ends)
    if not allow_compacted:
        refuse_compacted(facts, ends)
    wait_until_decided(facts, ends)
    return AsOf(ends, time_ms)


def offsets_of(facts: TopicFacts, at: At) -> dict[int, int]:
    """The offsets of a moment, or the given ones, without any check of the records before them.

    Raises:
        ConfigurationError: `at` is invalid.
    """
    return _offsets(facts, at) if isinstance(at, Mapping) else facts.at_time(max(_time_ms(at), 0))


def wait_until_decided(facts: TopicFacts, ends: Mapping[int, int]) -> None:
    """Wait until all records before these offsets are committed or rolled back.

    Raises:
        ConfigurationError: a transaction stays open.
    """
    if held := _still_open(facts, ends, _OPEN_TIMEOUT_S):
        raise ConfigurationError(
            f"at: a transaction of {facts.topic} is still open before the cut ({_places(held)}), and what it holds is "
            f"not decided; it was waited for {_OPEN_TIMEOUT_S:g} s: read again later, or cut earlier. What stays open "
            "for minutes, `sowstream transactions list` finds"
        )


def _still_open(facts: TopicFacts, ends: Mapping[int, int], timeout_s: float) -> dict[int, int]:
    """Wait until all records before these offsets are committed or rolled back.

    Returns:
        The partitions with an open transaction after the timeout, and the offset at which it begins.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        reached = facts.committed_ends()
        held = {partition: reached[partition] for partition, end in ends.items() if reached[partition] < end}
        if not held or time.monotonic() > deadline:
            return held
        time.sleep(_WAIT_S)


def _time_ms(at: dt.datetime) -> int:
    if not isinstance(at, dt.datetime):
        raise ConfigurationError(
            f"at is a {type(at).__name__}; give a datetime with a time zone, or the ending offset of each partition: "
            "at={0: 1200, 1: 1187}"
        )
    if at.utcoffset() is None:
        raise ConfigurationError(
            f"at={at.isoformat()} has no time zone, and could mean several moments; say which: "
            "at.replace(tzinfo=datetime.UTC), or at.astimezone() for this machine's"
        )
    # A moment between two milliseconds is after the first of them: Kafka's timestamps are whole milliseconds.
    time_ms = -((_EPOCH - at) // _MILLISECOND)
    if time_ms > time.time() * 1000:
        raise ConfigurationError(
            f"at={at.isoformat()} is in the future: records before it may still come, and the next read would not be "
            "this one; leave `at` out for what is there now"
        )
    return time_ms


def _offsets(facts: TopicFacts, at: Mapping[int, int]) -> dict[int, int]:
    """Check that offsets are given for all partitions and no others."""
    for partition, offset in at.items():
        if type(partition) is not int or type(offset) is not int or offset < 0:
            raise ConfigurationError(
                f"at says {partition!r}: {offset!r}; give partition numbers and the offset after the last one to read, "
                "at={0: 1200, 1: 1187}"
            )
    partitions = set(facts.partitions)
    if unknown := sorted(set(at) - partitions):
        raise ConfigurationError(
            f"at names partition {unknown[0]}, which {facts.topic} does not have: it has 0 to {len(partitions) - 1}"
        )
    if missing := sorted(partitions - set(at)):
        raise ConfigurationError(
            f"at lacks partition {missing[0]} of {facts.topic}: its keys would be missing; name all {len(partitions)}"
        )
    ends = facts.ends()
    for partition, offset in sorted(at.items()):
        if offset > ends[partition]:
            raise ConfigurationError(
                f"at says {offset} for partition {partition} of {facts.topic}, which ends at {ends[partition]}; give "
                "an offset that is there, or leave `at` out for what is there now"
            )
    return dict(at)


def refuse_deleted(facts: TopicFacts, ends: Mapping[int, int]) -> None:
    """Refuse an end from before which records have been deleted.

    Raises:
        ConfigurationError: there is none left before it.
    """
    begins, last = facts.begins(), facts.ends()
    # Where nothing was ever deleted, a partition begins at 0 and may have been empty then.
    deleted = {p: begins[p] for p, end in ends.items() if end < begins[p] or 0 < end == begins[p] < last[p]}
    if deleted:
        raise ConfigurationError(
            f"at is before the oldest records that {facts.topic} still has ({_places(deleted)}): what was there then "
            f"has been deleted, and {_NOTHING}; cut later"
        )


def _refuse_empty(facts: TopicFacts, ends: Mapping[int, int]) -> None:
    begins, last = facts.begins(), facts.ends()
    if all(end == begins[p] for p, end in ends.items()) and last != begins:
        raise ConfigurationError(
            f"at is before the oldest record of {facts.topic} ({_places(begins)}): {_NOTHING}; cut later, or leave "
            "`at` out for what is there now"
        )


def refuse_compacted(facts: TopicFacts, ends: Mapping[int, int]) -> None:
    """Refuse an end from before which compaction may have removed records.

    Compaction removes a record only because of a later one of its key that is older than the topic's lag.

    Raises:
        ConfigurationError: it may have, or the topic's settings cannot be read.
    """
    policy, lag_ms = facts.setting("cleanup.policy"), facts.setting("min.compaction.lag.ms")
    remedy = "cut later, or say allow_compacted=True for what compaction has left"
    if policy is None or lag_ms is None:
        raise ConfigurationError(
            f"at: the settings of {facts.topic} may not be read, so that nobody knows how far back compaction has left "
            f"everything; allow this user to describe the topic's configuration, or {remedy}"
        )
    if "compact" not in policy:
        return
    kept_ms = int(time.time() * 1000) - int(lag_ms)
    safe = facts.at_time(max(kept_ms, 0))
    early = {partition: safe[partition] for partition, end in ends.items() if end < safe[partition]}
    if early:
        raise ConfigurationError(
            f"at is further back than {facts.topic} is sure to be whole: compaction leaves what is younger than its "
            f"min.compaction.lag.ms of {int(lag_ms):,} ({_places(early)}), and may have taken records from before "
            f"because of later ones; {remedy}"
        )


def _places(offsets: Mapping[int, int]) -> str:
    """List some partitions with their offsets, for a message."""
    shown = [f"partition {partition}: offset {offset}" for partition, offset in sorted(offsets.items())[:3]]
    return ", ".join([*shown, "…"] if len(offsets) > 3 else shown)


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
        ends = {"endingOffsets": offsets_option(topic, {number: self.ends[number] for number in partitions})}
        begins = {number: self.begins[number] for number in partitions}
        return ends | {"startingOffsets": "earliest" if from_oldest else offsets_option(topic, begins)}


def resolve_span(facts: TopicFacts, since: At | None, until: At | None, *, allow_gaps: bool) -> Span:
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


def _until(facts: TopicFacts, until: At, *, allow_gaps: bool) -> Mapping[int, int]:
    return resolve_as_of(facts, until, allow_compacted=allow_gaps).ends


def _since(facts: TopicFacts, since: At, *, allow_gaps: bool) -> dict[int, int]:
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


def _refuse_expired(facts: TopicFacts, since: At, begins: Mapping[int, int], oldest: Mapping[int, int]) -> None:
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


def _is_kept(facts: TopicFacts, since_ms: float) -> bool:
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
