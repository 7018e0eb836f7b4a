"""Where a replay stands: what each message's bookmark says."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from typing import Final, TypeAlias

from processor.client.subscribe.bookmark import token
from processor.record import Record
from processor.subscriptions import Message

_PLACES_MAX: Final = 1_000
"""Places kept of those that the bookmark may still have to stand at."""

_Place: TypeAlias = tuple[int, dict[int, int]]
"""When something was given, and where the topic stood before it."""


class Replay:
    """Counts what has been told of a topic, so that whoever goes on after a message misses nothing."""

    def __init__(self, topic_id: str, begins: Mapping[int, int]) -> None:
        """Begin at these offsets of a topic."""
        self._topic_id = topic_id
        self._given = dict(begins)
        self._before: deque[_Place] = deque()
        self._bookmark = token(topic_id, begins)

    def give(self, partition: int, records: Sequence[Record], now_ms: int) -> None:
        """Hear what is given to the engine next, and when."""
        self._before.append((now_ms, dict(self._given)))
        self._given[partition] = records[-1].offset + 1
        if len(self._before) > _PLACES_MAX:
            self._before = _thinned(self._before)

    def marked(self, messages: list[Message], *, is_last: bool, held_since_ms: int | None) -> list[Message]:
        """The messages with their bookmarks.

        Args:
            messages: what was told, in order.
            is_last: whether nothing else waits to be taken.
            held_since_ms: when the oldest of the updates came that are held back; None if none is.
        """
        if not is_last:
            return [message._replace(bookmark=self._bookmark) for message in messages]
        before = self._before
        while before and (held_since_ms is None or before[0][0] < held_since_ms):
            before.popleft()
        reached = before[0][1] if before else self._given
        if not messages:
            return messages
        # Those before the last would leave out what comes after them.
        first = [message._replace(bookmark=self._bookmark) for message in messages[:-1]]
        self._bookmark = token(self._topic_id, reached)
        return [*first, messages[-1]._replace(bookmark=self._bookmark)]


def _thinned(before: deque[_Place]) -> deque[_Place]:
    """Half of the places, where a reader never comes to the end of what waits: of two the earlier stands for both."""
    pairs = zip_longest(islice(before, 0, None, 2), islice(before, 1, None, 2))
    return deque((earlier if later is None else (later[0], earlier[1])) for earlier, later in pairs)
