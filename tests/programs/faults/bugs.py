"""Runs workers with bugs: unless the checker finds each bug, its silence about other workers proves nothing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from tests.programs.faults.broken_worker import BUGS
from tests.programs.faults.checker import Discrepancy, check
from tests.programs.faults.kills import start_and_settle
from tests.programs.faults.load import commands, publish
from tests.programs.faults.scenario import Scenario, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.endtoend.world import World

_RECORDS = 3_000
_KEYS = 50
_SHORT = ("apply-before-commit", "merge-a-record-twice", "drop-a-delta")


def find_bugs(stage: Stage) -> None:
    """Run one bug after the other, each in a world of its own."""
    for bug in _SHORT if stage.is_short else BUGS:
        find(stage, bug, BUGS[bug][1])
    leave_a_transaction_open(stage)


def find(stage: Stage, bug: str, complaint: str) -> None:
    """Let a worker with the bug work between two without; the checker must report the complaint.

    The first one commits offsets for every partition: a partition that has records and no offset is held.
    """
    world = stage.world()
    load = commands(stage.seed, _RECORDS, _KEYS)
    publish(world, itertools.islice(load, _RECORDS // 3))
    start_and_settle(world)
    publish(world, load)
    broken = world.start(program=["tests.programs.faults.broken_worker", bug])
    broken.is_expected_to_end = True
    world.wait(lambda: broken.process.poll() is not None or world.processed(), f"the bug {bug}")
    if broken.process.poll() is None:
        assert broken.stop() == 0, broken.log()
    else:
        start_and_settle(world)
    _complains(stage, world, complaint.format(name=world.name), bug)


def leave_a_transaction_open(stage: Stage) -> None:
    """Open a transaction on SOW with a foreign producer and never end it."""
    world = stage.world(runtime={"transaction_timeout_s": 1, "commit_interval_s": 0.1})
    publish(world, commands(stage.seed, 100, _KEYS))
    start_and_settle(world)
    check(world)
    producer = Producer({"bootstrap.servers": world.bootstrap, "transactional.id": world.name})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(f"{world.name}.sow", b"{}", b"0", 0)
    producer.flush(20)
    try:
        _complains(stage, world, f"transaction left open: {world.name}.sow partition 0", "transaction left open")
    finally:
        producer.abort_transaction(20)


def _complains(stage: Stage, world: World, complaint: str, bug: str) -> None:
    message = "nothing"
    try:
        check(world)
    except Discrepancy as error:
        message = str(error)
    assert complaint in message, f"{bug}: not {complaint!r}, but {message}"
    stage.count(world, _RECORDS)
    stage.report(f"  {bug}: {_first(message.splitlines(), complaint)}")


def _first(lines: Iterable[str], complaint: str) -> str:
    return next(line for line in lines if complaint in line)[:150]


SCENARIOS = [
    Scenario("injected-bugs", f"{len(BUGS) + 1} bugs put into a worker, each found by the checker", 300, find_bugs),
]
