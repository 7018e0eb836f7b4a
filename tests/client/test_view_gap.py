"""A view from which deltas were withheld reads its topic again, and ends with the state of the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from processor.client.subscribe.subscription import Subscription
from processor.client.subscribe.view import View
from processor.errors import PositionLost
from processor.subscriptions import Message

if TYPE_CHECKING:
    from collections.abc import Sequence


class Topic:
    """A feed of one topic: a snapshot of its records, then deltas, some of which are withheld."""

    is_live = True
    is_over = False
    healed = 0
    unchecked = 0

    def __init__(self, *deltas: Message | None) -> None:
        self.records = {"1": (1, {"id": 1, "a": 0})}
        self.next = self.snapshot()
        self.deltas = list(deltas)
        self.reasons: list[str] = []

    def snapshot(self) -> list[Message]:
        """A group of all records."""
        sows = [
            Message("sow", "orders", key, dict(record), version=version)
            for key, (version, record) in self.records.items()
        ]
        return [Message("group_begin", "orders"), *sows, Message("group_end", "orders")]

    def fetch(self, wait_s: float) -> list[Message]:
        """The next messages: a snapshot, or all deltas together."""
        if self.next:
            messages, self.next = self.next, []
            return messages
        messages, self.deltas = [delta for delta in self.deltas if delta is not None], []
        return messages

    def begin_again(self, reason: str) -> None:
        """Deliver the current records as a snapshot."""
        self.reasons.append(reason)
        self.next = self.snapshot()

    def add(self, _request: object, _sub_id: str | None) -> str:
        """Fail: it is never called."""
        raise NotImplementedError

    def remove(self, sub_id: str) -> None:
        """Fail: it is never called."""

    def close(self, *, delivered: bool) -> None:
        """Do nothing."""


def view_of(topic: Topic) -> View:
    """A view of the feed."""
    subscription = Subscription(topic, lambda *_: None, timeout_s=None, on_message=None, on_close=lambda _: None)  # type: ignore[arg-type, return-value]
    return View(subscription)


def delta(version: int, base: int | None, removed: Sequence[str] = (), **fields: object) -> Message:
    """A delta of key 1."""
    return Message(
        "publish",
        "orders",
        "1",
        {"id": 1, **fields},
        delta=True,
        version=version,
        removed=tuple(removed),
        delta_base=base,
    )


def test_a_delta_that_does_not_fit_has_the_topic_read_again():
    """The view stays unchanged until the snapshot is complete; then it reports the changes and applies deltas."""
    topic = Topic(delta(2, 1, a=1), delta(4, 3, c=3), delta(5, 4, a=5))
    view = view_of(topic)
    topic.records["1"] = (5, {"id": 1, "a": 5, "b": 2, "c": 3})
    changes = view.refresh()
    assert [change.changed for change in changes] == [("/a",), ("/a", "/b", "/c")]
    assert dict(view) == {"1": {"id": 1, "a": 5, "b": 2, "c": 3}}
    assert view.healed == 1
    assert topic.reasons == ["a delta of key '1' applies to version 3, the view has version 2"]
    topic.deltas = [delta(6, 5, removed=["/b"])]
    assert [change.removed for change in view.refresh()] == [("/b",)]
    assert view.healed == 1


def test_deltas_that_fit_are_applied_also_where_versions_jump():
    """A delta over several versions has a base, one of a topic without versions has none: both are applied."""
    topic = Topic(delta(7, 1, a=1), delta(8, 7, a=2), delta(9, None, a=3))
    view = view_of(topic)
    view.refresh()
    assert dict(view) == {"1": {"id": 1, "a": 3}}
    assert view.healed == 0


def test_a_record_that_left_and_came_back_begins_with_its_own_version():
    """An `oof` forgets the version; a full record sets it."""
    gone = Message("oof", "orders", "1", {"id": 1}, reason="deleted", version=2)
    back = Message("publish", "orders", "1", {"id": 1, "a": 9}, version=1)
    view = view_of(Topic(gone, back, delta(2, 1, b=1)))
    view.refresh()
    assert dict(view) == {"1": {"id": 1, "a": 9, "b": 1}}
    assert view.healed == 0


def test_a_feed_without_a_snapshot_is_an_error():
    """A feed without a snapshot raises, and the error reaches the reader of the view."""

    class Plain(Topic):
        """A feed without a snapshot."""

        def begin_again(self, reason: str) -> None:
            raise PositionLost(reason)

    view = view_of(Plain(delta(4, 3, c=3)))
    with pytest.raises(PositionLost, match="applies to version 3"):
        view.refresh()
