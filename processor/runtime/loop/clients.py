"""The collaborators of a stream thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.api import Codec
    from processor.hosting.output_limits import OutputLimits
    from processor.kafka.clients.group_consumer import AssignmentListener, GroupConsumer
    from processor.runtime.loop.committer import Committer
    from processor.runtime.loop.held_tasks import Notices
    from processor.runtime.loop.task_metrics import RetentionHeadroom, WaitingRecords
    from processor.runtime.loop.task_reports import PipelineReport
    from processor.runtime.recovery.restorer import Restorer
    from processor.runtime.recovery.standbys import Standbys


class Clients(NamedTuple):
    """The collaborators of a stream thread; created by the worker, owned by the thread."""

    consumer: Callable[[AssignmentListener], GroupConsumer]
    """Joins the group and calls the listener with its partitions."""
    committer: Committer
    """Sends the outputs, and commits them with the input offsets."""
    restorer: Restorer
    """Restores the states of partitions."""
    standbys: Standbys
    """Keeps the states of partitions that may be assigned later."""
    beat: Callable[[], None] = lambda: None
    """Shows the watchdog that the thread is not stuck."""
    notices: Notices | None = None
    """Publishes held partitions, and receives operators' orders."""
    fenced: Callable[[], None] = lambda: None
    """Called when another process has taken the transactional id."""
    limits: OutputLimits | None = None
    """The size limits of outputs, and of the bytes that may wait."""
    headroom: RetentionHeadroom | None = None
    """The retention time of the input, for a gauge."""
    backlog: WaitingRecords | None = None
    """What waits in Kafka of partitions that do not run, and of dead letters, for gauges."""
    report: PipelineReport | None = None
    """Shows the tasks to the health pages."""
    input_codec: Codec | None = None
    """The message type of the input, if it is not that of the records."""
