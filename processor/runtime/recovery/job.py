"""The restore of one partition, as far as it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import structlog

from processor.errors import Stop
from processor.runtime.recovery.redelivered import Redelivered

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.errors import PartitionHeld
    from processor.runtime.recovery.input_position import Beginning
    from processor.runtime.recovery.log_replay import LogReplay
    from processor.runtime.recovery.target import Start
    from processor.runtime.task import Task
    from processor.store.layered_state import LayeredState

log = structlog.stdlib.get_logger("sowstream.restore")


@dataclass(slots=True, eq=False)
class RestoreJob:
    """The restore of one partition, as far as it has come."""

    task: Task
    began_s: float  # On the monotonic clock.
    start: Start | None = None  # Where the input continues, by the group's offset.
    beginning: Beginning | None = None  # Where the input continues instead.
    logs: dict[str, LogReplay] = field(default_factory=dict)  # By topic; empty if there is nothing to restore.
    why_closed: str = ""  # Why its directory is not open yet.
    read: int = 0
    sow_read: int = 0
    opened_at: int = 0  # The SOW position of its state when it was opened.
    damages: int = 0  # How often its store was wiped during the restore.
    logged_s: float = field(default=0.0)


def moved_start(start: Start, beginning: Beginning) -> Start:
    """Replace the start of the input by a beginning that the input position has decided."""
    redelivered = Redelivered.from_metadata(beginning.offset, beginning.metadata)
    return start._replace(offset=beginning.offset, redelivered=redelivered, is_new=False, metadata=beginning.metadata)


def open_stores(
    task: Task, open_state: Callable[[int], LayeredState], open_table: Callable[[int], LayeredState] | None
) -> None:
    """Open the state of a task, and its table if its processor keeps one."""
    state = open_state(task.partition)
    if open_table is None:
        task.open(state)
        return
    try:
        table = open_table(task.partition)
    except BaseException:
        state.close(0)  # It is opened again with the table, in a later turn.
        raise
    task.open(state, table)


def log_restoring(part: LogReplay) -> None:
    """Log the progress of a topic's restore."""
    log.info("restoring", topic=part.topic, partition=part.partition, position=part.position, end=part.target)


def stop_for_hold(_task: Task, error: PartitionHeld) -> NoReturn:
    """Raise the reason why a partition cannot be restored, if no caller can hold it."""
    raise Stop(str(error)) from error
