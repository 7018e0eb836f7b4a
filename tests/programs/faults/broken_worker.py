"""A worker with a bug: `broken_worker BUG worker NAME -c FILE`. The checker must find each of these bugs."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from processor.builtin.delta_merge.deduplication import Deduplicator
from processor.cli.main import main
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.runtime.recovery.input_position import InputPositions
from processor.runtime.task import Task
from processor.store.contract import Progress
from processor.store.layered_state import LayeredState
from tests.endtoend.crashing_worker import arm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from processor.record import Outgoing, Record

_ENOUGH = 20  # Records in a batch, so that a record in the middle can be damaged.


def once(owner: type, name: str, harm: Callable[..., Any], accept: Callable[..., bool]) -> None:
    """Replace one call of a method: the first one whose arguments are accepted."""
    original = getattr(owner, name)
    done = False

    def harmed(self: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal done
        if not done and accept(*arguments):
            done = True
            return harm(original, self, *arguments, **keywords)
        return original(self, *arguments, **keywords)

    setattr(owner, name, harmed)


def apply_before_commit() -> None:
    """Apply uncommitted changes to the store, and then roll the transaction back."""
    original = LayeredState.put_many

    def put_many(self: LayeredState, changes: Any) -> None:
        original(self, changes)
        self.store.apply(changes, Progress(self.position, int(time.time() * 1000)))

    LayeredState.put_many = put_many  # type: ignore[method-assign]
    arm("abort", 1)


def offsets_not_in_the_transaction() -> None:
    """Commit the records without the input's offsets and positions, and then let the worker die."""
    original = TransactionalProducer.begin_commit

    def begin_commit(self: TransactionalProducer, topic: str, _: Any, group_metadata: Any, **more: Any) -> None:
        original(self, topic, {}, group_metadata, **more)

    TransactionalProducer.begin_commit = begin_commit  # type: ignore[method-assign]
    InputPositions.stage = lambda *_: None  # type: ignore[method-assign]
    arm("after commit, before apply", 1)


def process(harm: Callable[[list[Record]], list[Record]]) -> None:
    """Process other records than those consumed, while the position is that of the consumed ones."""

    def harmed(original: Any, self: Task, records: Sequence[Record]) -> None:
        end = records[-1].offset + 1
        original(self, harm(list(records)))
        self.next_offset = end

    once(Task, "process", harmed, lambda records: len(records) > _ENOUGH)


def send(role: str, harm: Callable[[list[Outgoing]], list[Outgoing]], least: int = _ENOUGH) -> None:
    """Send other records to a topic than the worker produced."""

    def harmed(original: Any, self: Any, topic: str, partition: int | None, records: Any, *more: Any) -> Any:
        return original(self, topic, partition, harm(list(records)), *more)

    name = "send_marked" if role == "sow" else "send"
    once(TransactionalProducer, name, harmed, lambda topic, _, records, *__: _is(topic, role) and len(records) > least)


def _is(topic: str, role: str) -> bool:
    return topic.rpartition(".")[2] == role


def lose_one(records: list[Any]) -> list[Any]:
    """Remove one record in the middle."""
    place = _update(records)
    return records[:place] + records[place + 1 :]


def repeat_one(records: list[Any]) -> list[Any]:
    """Repeat one record in the middle."""
    place = _update(records)
    return records[: place + 1] + records[place:]


def _update(records: list[Any]) -> int:
    """The place of the first good delta from the middle on: the checker has other complaints for other records."""
    middle = len(records) // 2
    return next((place for place in range(middle, len(records)) if _is_delta(*records[place][:3])), middle)


def _is_delta(key: bytes | None, value: bytes | None, headers: Any) -> bool:
    try:
        body = json.loads(value or b"")
    except ValueError:
        return False
    names = {name for name, _ in headers or ()}
    return isinstance(body, dict) and b"%d" % body["id"] == key and not names & {"command", "sequence"}


def swap_two(records: list[Any]) -> list[Any]:
    """Swap the first two records of the same key."""
    places: dict[bytes | None, int] = {}
    for place, record in enumerate(records):
        if (before := places.setdefault(record[0], place)) != place:
            records[before], records[place] = records[place], records[before]
            break
    return records


BUGS: dict[str, tuple[Callable[[], None], str]] = {
    "apply-before-commit": (apply_before_commit, "wrong version in {name}.sow"),
    "offsets-not-in-transaction": (offsets_not_in_the_transaction, "told twice in {name}.sow"),
    "skip-an-input-record": (lambda: process(lose_one), "lost in {name}.sow: 1"),
    "merge-a-record-twice": (lambda: process(repeat_one), "told twice in {name}.delta: 1"),
    "drop-a-delta": (lambda: send("delta", lose_one), "lost in {name}.delta: 1"),
    "drop-a-sow-record": (lambda: send("sow", lose_one), "lost in {name}.sow: 1"),
    "send-a-delta-twice": (lambda: send("delta", repeat_one), "told twice in {name}.delta: 1"),
    "swap-two-sow-records": (lambda: send("sow", swap_two), "out of order in {name}.sow"),
    "lose-a-dead-letter": (lambda: send("dlq", lose_one, 0), "lost in {name}.dlq: 1"),
    "send-a-rekeyed-record-twice": (lambda: send("publish", repeat_one, 0), "sent again 2 times in {name}.publish"),
    "forget-the-sequences": (
        lambda: setattr(Deduplicator, "is_duplicate", lambda *_: False),
        "of no input record in {name}.sow",
    ),
}
"""Each bug, with the complaint that the checker must raise."""


if __name__ == "__main__":
    BUGS[sys.argv[1]][0]()
    del sys.argv[1]
    main()
