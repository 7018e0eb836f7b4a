"""Finds the tasks whose output Kafka has refused for its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.errors import OutputTooLarge
    from processor.hosting.output_limits import OutputLimits
    from processor.hosting.pipeline import Pipeline
    from processor.runtime.task import Task


def blame(error: OutputTooLarge, running: Iterable[Task], limits: OutputLimits, pipeline: Pipeline) -> bool:
    """Have the tasks that may have it look for the record at fault; whether the limit of the topic was not known.

    Args:
        error: what Kafka said, and of which topic and partition.
        running: the tasks of the transaction.
        limits: the known limits, which learn.
        pipeline: says of which outputs the partition tells nothing of the task.
    """
    role = None if error.topic is None else limits.role_of(error.topic)
    is_learnt = error.topic is not None and limits.refused(error.topic)
    is_anywhere = error.partition is None or role in pipeline.repartitioned
    for task in running:
        if is_anywhere or task.partition == error.partition:
            task.host.refused(role, error, is_learnt=is_learnt)
    return is_learnt
