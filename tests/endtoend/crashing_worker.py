"""A worker that meets a calamity at a chosen point, once: `crashing_worker POINT COUNT worker NAME -c FILE`.

The point is hit the COUNT-th time the worker comes by; until then, and after a calamity that it survives, it is the
worker as shipped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from processor.cli.main import main
from processor.errors import ProducerLost, TransactionAborted
from processor.kafka.clients import transactional_producer
from processor.kafka.clients.transactional_producer import TransactionalProducer
from processor.runtime.loop.stream_thread import StreamThread
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.task import Task
from processor.store.layered_state import LayeredState


class Client(Producer):
    """librdkafka's producer, whose calls can be armed."""


def die() -> None:
    """End the process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def abort() -> None:
    """Raise as if the broker wanted the transaction rolled back."""
    raise TransactionAborted("injected")


def lose() -> None:
    """Raise as if the answer to the commit were lost."""
    raise ProducerLost("injected")


def hang() -> None:
    """Block for ever."""
    threading.Event().wait()


POINTS: dict[str, tuple[type, str, str, Callable[[], None]]] = {
    "after merge": (Task, "process", "after", die),
    "after produce": (TransactionalProducer, "send_marked", "after", die),
    "after send offsets": (Client, "send_offsets_to_transaction", "after", die),
    "before commit": (TransactionalProducer, "begin_commit", "before", die),
    "after commit, before apply": (TransactionalProducer, "finish_commit", "after", die),
    "after apply": (LayeredState, "commit", "after", die),
    "write begun": (LayeredState, "start_writing", "after", die),
    "after write": (LayeredState, "write_some", "after", die),
    "during restore": (Restorer, "_apply_batch", "after", die),
    "abort": (TransactionalProducer, "begin_commit", "before", abort),
    "abort half sent": (TransactionalProducer, "send_marked", "before", abort),
    "commit of unknown end": (TransactionalProducer, "finish_commit", "after", lose),
    "commit that never went out": (TransactionalProducer, "begin_commit", "before", lose),
}
"""A worker that meets one is done again, by itself or by the next."""

MEANWHILE: dict[str, tuple[type, str, str, Callable[[], None]]] = {
    "merged meanwhile": (StreamThread, "_process_batch", "meanwhile", die),
    "failed meanwhile": (StreamThread, "_process_batch", "meanwhile", abort),
    "unknown meanwhile": (StreamThread, "_process_batch", "meanwhile", lose),
}
"""Those that only a worker meets that is behind its input: while a transaction is committed the next one is merged."""

STUCK = "stuck"
_ALL = POINTS | MEANWHILE | {STUCK: (LayeredState, "commit", "before", hang)}


def arm(point: str, count: int) -> None:
    """Install the failure at its point."""
    owner, name, when, calamity = (_ALL | POINTS)[point]  # Others may have added theirs.
    original = getattr(owner, name)
    left = count

    def armed(self: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal left
        if when == "meanwhile" and not self._transactions.is_committing:
            return original(self, *arguments, **keywords)
        left -= 1
        if left == 0 and when == "before":
            calamity()
        result = original(self, *arguments, **keywords)
        if left == 0 and when != "before":
            calamity()
        return result

    setattr(owner, name, armed)
    if owner is Client:
        vars(transactional_producer)["Producer"] = Client


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    del sys.argv[1:3]
    main()
