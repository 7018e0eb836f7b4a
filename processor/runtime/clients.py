"""What a stream thread works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.kafka.group_consumer import AssignmentListener, GroupConsumer
    from processor.kafka.staged_producer import StagedProducer
    from processor.kafka.transactional_producer import TransactionalProducer
    from processor.runtime.held_tasks import Notices
    from processor.runtime.input_position import InputPositions
    from processor.runtime.output_limits import OutputLimits
    from processor.runtime.restore import Restorer
    from processor.runtime.standby import Standbys


class Clients(NamedTuple):
    """What a thread works with; made by the worker, owned by the thread."""

    consumer: Callable[[AssignmentListener], GroupConsumer]
    """Joins the group, telling the listener of its partitions."""
    producer: TransactionalProducer | StagedProducer
    """Writes the outputs."""
    restorer: Restorer
    """Brings the states back."""
    standbys: Standbys
    """Keeps states of partitions that may come."""
    beat: Callable[[], None] = lambda: None
    """Tells the watchdog that the thread comes round."""
    notices: Notices | None = None
    """Told of held partitions, and brings operators' orders."""
    positions: InputPositions | None = None
    """Makes the records of input positions."""
    fenced: Callable[[], None] = lambda: None
    """Called when somebody else has taken our transactional id."""
    limits: OutputLimits | None = None
    """How large outputs may be, and how many bytes of them may wait."""
