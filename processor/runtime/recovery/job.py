"""One partition on its way back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import structlog

from processor.errors import Stop
from processor.runtime.recovery.redelivered import Tail

if TYPE_CHECKING:
    from processor.errors import PartitionHeld
    from processor.runtime.recovery.input_position import Beginning
    from processor.runtime.recovery.log_replay import RestoredLog
    from processor.runtime.recovery.target import Start
    from processor.runtime.task import Task

log = structlog.stdlib.get_logger("sowstream.restore")


@dataclass(slots=True, eq=False)
class RestoreJob:
    """One partition on its way back."""

    task: Task
    began_s: float  # On the monotonic clock.
    start: Start | None = None  # Where the input goes on, as the group says.
    instead: Beginning | None = None  # Where it goes on in its place.
    logs: dict[str, RestoredLog] = field(default_factory=dict)  # By topic; of none if there is nothing to restore.
    why_closed: str = ""  # Why its directory is not open yet.
    read: int = 0
    sow_read: int = 0
    was_at: int = 0  # Up to where its state followed the SOW topic when it was opened.
    damages: int = 0  # How often its store was wiped on the way.
    logged_s: float = field(default=0.0)


def instead(start: Start, begin: Beginning) -> Start:
    """Another place where the input goes on, with what is known of it."""
    return start._replace(offset=begin.offset, tail=Tail.noted(begin.offset, begin.note), is_new=False, note=begin.note)


def tell_restoring(part: RestoredLog) -> None:
    """Log how far a log has been read."""
    log.info("restoring", topic=part.topic, partition=part.partition, position=part.position, end=part.target)


def stop_for_hold(_task: Task, error: PartitionHeld) -> NoReturn:
    """End with why a partition cannot be restored, where nobody holds it."""
    raise Stop(str(error)) from error
