"""Runs `crashing_worker` for a worker without transactions: the same failures, and those between its stages."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from processor.cli.main import main
from processor.kafka.clients.group_consumer import GroupConsumer
from processor.kafka.clients.staged_producer import StagedProducer
from processor.kafka.clients.transactional_producer import TransactionalProducer
from tests.endtoend import crashing_worker
from tests.endtoend.crashing_worker import arm, die

if TYPE_CHECKING:
    from collections.abc import Callable

HALF = "within SOW"
ASLEEP = "asleep before SOW"


def sleep() -> None:
    """Suspend this thread, and the others with it, until SIGCONT."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


POINTS: dict[str, tuple[type, str, str, Callable[[], None]]] = {
    name: (StagedProducer if owner is TransactionalProducer else owner, *rest)
    for name, (owner, *rest) in crashing_worker.POINTS.items()
    if name != "after send offsets"
} | {
    "before SOW": (StagedProducer, "_send_stage", "before", die),
    "after SOW": (StagedProducer, "_send_stage", "after", die),
    "before offsets": (GroupConsumer, "commit", "before", die),
    "after offsets": (GroupConsumer, "commit", "after", die),
}


def arm_half() -> None:
    """Kill the worker when SOW has the first half of the records that one partition sends it."""
    original = StagedProducer._send_stage

    def armed(self: StagedProducer, batches: Any, deadline_s: float) -> None:
        batch = max(batches, key=lambda batch: len(batch.records))
        half = batch._replace(records=batch.records[: (len(batch.records) + 1) // 2], delivered=None)
        original(self, [half], deadline_s)
        die()

    StagedProducer._send_stage = armed  # type: ignore[method-assign]


if __name__ == "__main__":
    if sys.argv[1] == HALF:
        arm_half()
    else:
        crashing_worker.POINTS.update(POINTS)
        crashing_worker.POINTS[ASLEEP] = (StagedProducer, "_send_stage", "before", sleep)
        arm(sys.argv[1], int(sys.argv[2]))
    del sys.argv[1:3]
    main()
