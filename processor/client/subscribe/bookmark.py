"""Bookmarks: where in a SOW topic a replay begins, and where it is to go on after a message.

A token is the topic's id and the next offset of each partition, in the order of their numbers::

    KyVL8zLdTQa1Xz0v1cVw3A:1042.998.1003
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from processor.client.feeds.snapshot_boundary import Cut
from processor.errors import ConfigurationError, PositionLost

_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]{22}):([0-9]{1,19}(?:\.[0-9]{1,19})*)")

_URL_SAFE: Final = str.maketrans("+/", "-_")  # librdkafka writes topic ids in plain base64, which is no good in a URL.


def token(topic_id: str, positions: Mapping[int, int]) -> str:
    """The bookmark that stands for these positions."""
    return f"{topic_id.translate(_URL_SAFE)}:{'.'.join(str(positions[partition]) for partition in sorted(positions))}"


def check_bookmark(bookmark: str) -> None:
    """Refuse what can be no bookmark, before anything is asked of Kafka.

    Raises:
        ConfigurationError: it is none.
    """
    if bookmark not in ("epoch", "now") and not _TOKEN.fullmatch(bookmark):
        _time_ms(bookmark)


def begins(bookmark: str, cut: Cut, topic_id: str) -> dict[int, int]:
    """The offsets at which a replay begins.

    Args:
        bookmark: `epoch`, `now`, an ISO 8601 time, or the token of a message.
        cut: the ends of now.
        topic_id: what the topic is now.

    Raises:
        ConfigurationError: it is no bookmark, or one of another topic.
        PositionLost: what it stands before is not there any more.
        BrokerUnavailable: no answer in time.
    """
    if bookmark == "now":
        return dict(cut.ends)
    if bookmark == "epoch":
        return {partition: cut.oldest(partition) for partition in cut.ends}
    if (parts := _TOKEN.fullmatch(bookmark)) is None:
        return cut.at_time(_time_ms(bookmark))
    if parts[1] != topic_id.translate(_URL_SAFE):
        raise ConfigurationError(
            f"the bookmark {bookmark!r} is of another topic than {cut.topic} is now: it was made anew, or the bookmark "
            "belongs elsewhere; begin with bookmark=epoch, or with a snapshot"
        )
    offsets = [int(offset) for offset in parts[2].split(".")]
    if len(offsets) != len(cut.ends):
        raise ConfigurationError(
            f"the bookmark {bookmark!r} has {len(offsets)} partitions, {cut.topic} has {len(cut.ends)}: partitions "
            "were added; begin with bookmark=epoch, or with a snapshot"
        )
    positions = dict(zip(sorted(cut.ends), offsets, strict=True))
    for partition, offset in positions.items():
        _check_there(cut, partition, offset)
    return positions


def _check_there(cut: Cut, partition: int, offset: int) -> None:
    """Refuse an offset that the topic does not have."""
    if offset > cut.ends[partition]:
        raise PositionLost(
            f"{cut.topic} partition {partition}: the bookmark stands at offset {offset}, but the topic ends at "
            f"{cut.ends[partition]}: it has lost records; begin with bookmark=epoch, or with a snapshot"
        )
    if offset < (oldest := cut.oldest(partition)):
        raise PositionLost(
            f"{cut.topic} partition {partition}: the bookmark stands at offset {offset}, but the oldest record kept is "
            f"{oldest}: what lies between was deleted; begin with bookmark=epoch, or with a snapshot"
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
    # Kafka takes times before the epoch for words of its own: -1 is the end of a partition.
    return max(0, round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))
