"""What a stream thread works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.hosting.output_limits import OutputLimits
    from processor.kafka.producers.staged_producer import StagedProducer
    from processor.kafka.producers.transactional_producer import TransactionalProducer
    from processor.kafka.readers.group_consumer import AssignmentListener, GroupConsumer
    from processor.runtime.holding.held_tasks import Notices
    from processor.runtime.recovery.input_position import InputPositions
    from processor.runtime.recovery.restorer import Restorer
    from processor.runtime.standby.standbys import Standbys


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
