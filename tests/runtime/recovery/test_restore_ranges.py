"""Tests of the questions before a restore."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from processor.kafka.admin.groups import Committed
from processor.kafka.admin.questions import Question
from processor.runtime.recovery.input_position import InputPositions
from processor.runtime.recovery.restore_range import RestoreRange, RestoreRanges

if TYPE_CHECKING:
    from collections.abc import Iterable


class Asked:
    """An admin client that keeps the questions; the test answers them."""

    renewal = SimpleNamespace(answered=lambda _: None)

    def __init__(self) -> None:
        self.futures: dict[tuple[str, str], Future[Any]] = {}

    def answer(self, question: str, topic: str, value: Any) -> None:
        """Answer a question."""
        self.futures[question, topic].set_result(value)

    def ask_committed(self, _group: str, topic: str, partitions: Iterable[int]) -> dict[int, Question[Committed]]:
        """Ask for the committed offset."""
        return self._ask("committed", topic, partitions)

    def ask_offsets(self, topic: str, partitions: Iterable[int], kind: str) -> dict[int, Question[int]]:
        """Ask for an offset of a log."""
        return self._ask(kind, topic, partitions)

    def ask_config(self, topic: str) -> Question[dict[str, str]]:
        """Ask for settings."""
        return self._ask("settings", topic, [0])[0]

    def ask_topic(self, topic: str) -> Question[tuple[str, int]]:
        """Ask for an id."""
        return self._ask("id", topic, [0])[0]

    def _ask(self, question: str, topic: str, partitions: Iterable[int]) -> dict[int, Question[Any]]:
        future = self.futures[question, topic] = Future()
        return {partition: Question(question, future, 60.0) for partition in partitions}


def test_the_ends_of_the_logs_are_asked_for_once_the_committed_offset_is_known():
    """An end from before that offset may lack records that were committed with it, and the state would lack them."""
    admin = Asked()
    positions = InputPositions("desk", "orders", "orders.publish")
    ranges = RestoreRanges(
        cast("Any", admin), positions, group="g", source="orders.publish", sow="orders.sow", mark="orders.mark"
    )
    ranges.add(0)
    ranges.turn()
    admin.answer("oldest", "orders.publish", 0)
    admin.answer("settings", "orders.sow", {})
    admin.answer("id", "orders.publish", ("first", 1))
    ranges.turn()
    logs = ("orders.sow", "orders.mark")
    assert not any(("end", log) in admin.futures for log in logs)
    admin.answer("committed", "orders.publish", Committed(7, None))
    ranges.turn()
    for log in logs:
        admin.answer("end", log, 5)
        admin.answer("oldest", log, 0)
    outcome = ranges.turn()[0]
    assert isinstance(outcome, RestoreRange)
    assert (outcome.start.offset, outcome.ends) == (7, dict.fromkeys(logs, 5))
