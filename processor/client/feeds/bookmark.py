"""Bookmarks: the offsets at which a replay begins, and the bookmark of each message.

A token is the topic's id and the next offset of each partition, in the order of their numbers::

    KyVL8zLdTQa1Xz0v1cVw3A:1042.998.1003
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice, zip_longest
from typing import Final, TypeAlias

from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.errors import ConfigurationError, PositionLost
from processor.record import Record
from processor.subscriptions import Message

_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]{22}):([0-9]{1,19}(?:\.[0-9]{1,19})*)")

_URL_SAFE: Final = str.maketrans("+/", "-_")  # librdkafka writes topic ids in plain base64, which is no good in a URL.

_PLACES_MAX: Final = 1_000
"""Limit of the earlier positions that are kept for updates still held back."""

_Place: TypeAlias = tuple[int, dict[int, int]]
"""The time when records were given to the engine, and the positions before them."""


def token(topic_id: str, positions: Mapping[int, int]) -> str:
    """The bookmark for these positions."""
    return f"{topic_id.translate(_URL_SAFE)}:{'.'.join(str(positions[partition]) for partition in sorted(positions))}"


def check_bookmark(bookmark: str) -> None:
    """Reject text that cannot be a bookmark, before any request to Kafka.

    Raises:
        ConfigurationError: the text is no bookmark.
    """
    if bookmark not in ("epoch", "now") and not _TOKEN.fullmatch(bookmark):
        _time_ms(bookmark)


def begins(bookmark: str, boundary: SnapshotBoundary, topic_id: str) -> dict[int, int]:
    """The offsets at which a replay begins.

    Args:
        bookmark: `epoch`, `now`, an ISO 8601 time, or the token of a message.
        boundary: the ends of the topic now.
        topic_id: the topic's id now.

    Raises:
        ConfigurationError: it is no bookmark, or belongs to another topic.
        PositionLost: the records after it are not kept any more.
        BrokerUnavailable: no answer in time.
    """
    if bookmark == "now":
        return dict(boundary.ends)
    if bookmark == "epoch":
        return {partition: boundary.oldest(partition) for partition in boundary.ends}
    if (parts := _TOKEN.fullmatch(bookmark)) is None:
        return boundary.at_time(_time_ms(bookmark))
    if parts[1] != topic_id.translate(_URL_SAFE):
        raise ConfigurationError(
            f"the bookmark {bookmark!r} is of another topic than {boundary.topic} is now: it was recreated, or the "
            "bookmark belongs elsewhere; begin with bookmark=epoch, or with a snapshot"
        )
    offsets = [int(offset) for offset in parts[2].split(".")]
    if len(offsets) != len(boundary.ends):
        raise ConfigurationError(
            f"the bookmark {bookmark!r} has {len(offsets)} partitions, {boundary.topic} has {len(boundary.ends)}: "
            "partitions were added; begin with bookmark=epoch, or with a snapshot"
        )
    positions = dict(zip(sorted(boundary.ends), offsets, strict=True))
    for partition, offset in positions.items():
        _check_there(boundary, partition, offset)
    return positions


def _check_there(boundary: SnapshotBoundary, partition: int, offset: int) -> None:
    """Reject an offset that the topic does not have."""
    if offset > boundary.ends[partition]:
        raise PositionLost(
            f"{boundary.topic} partition {partition}: the bookmark stands at offset {offset}, but the topic ends at "
            f"{boundary.ends[partition]}: it has lost records; begin with bookmark=epoch, or with a snapshot"
        )
    if offset < (oldest := boundary.oldest(partition)):
        raise PositionLost(
            f"{boundary.topic} partition {partition}: the bookmark stands at offset {offset}, but the oldest record "
            f"kept is {oldest}: what lies between was deleted; begin with bookmark=epoch, or with a snapshot"
        )


def _time_ms(text: str) -> int:
    """An ISO 8601 time in milliseconds since the epoch; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"option 'bookmark' is {text!r}; it is epoch, now, a time such as 2026-11-22T08:00:00Z, or the bookmark of "
            "a message"
        ) from None
    # Kafka gives times before the epoch special meanings: -1 is the end of a partition.
    return max(0, round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))


class BookmarkTracker:
    """Tracks the positions that were delivered completely: a reader who resumes at a bookmark misses nothing."""

    def __init__(self, topic_id: str, begins: Mapping[int, int]) -> None:
        """Begin at these offsets of a topic."""
        self._topic_id = topic_id
        self._given = dict(begins)
        self._before: deque[_Place] = deque()
        self._bookmark = token(topic_id, begins)

    def advance(self, partition: int, records: Sequence[Record], now_ms: int) -> None:
        """Record that the engine gets these records now."""
        self._before.append((now_ms, dict(self._given)))
        self._given[partition] = records[-1].offset + 1
        if len(self._before) > _PLACES_MAX:
            self._before = _thinned(self._before)

    def marked(self, messages: list[Message], *, is_last: bool, held_since_ms: int | None) -> list[Message]:
        """Add their bookmarks to messages.

        Args:
            messages: the delivered messages, in order.
            is_last: whether nothing else waits to be taken.
            held_since_ms: the arrival time of the oldest update that conflation holds back; None if there is none.
        """
        if not is_last:
            return [message._replace(bookmark=self._bookmark) for message in messages]
        before = self._before
        while before and (held_since_ms is None or before[0][0] < held_since_ms):
            before.popleft()
        reached = before[0][1] if before else self._given
        if not messages:
            return messages
        # A later bookmark on an earlier message would skip the messages in between.
        first = [message._replace(bookmark=self._bookmark) for message in messages[:-1]]
        self._bookmark = token(self._topic_id, reached)
        return [*first, messages[-1]._replace(bookmark=self._bookmark)]


def _thinned(before: deque[_Place]) -> deque[_Place]:
    """Half of the places, for a reader that never drains the queue: of two, the earlier stands for both."""
    pairs = zip_longest(islice(before, 0, None, 2), islice(before, 1, None, 2))
    return deque((earlier if later is None else (later[0], earlier[1])) for earlier, later in pairs)
