"""Moves a topic to another one with another number of partitions, while publishers go on.

`reshard` makes the move in steps, each of which may be repeated after a death; `record_copy` copies the records and the
marks.
"""

from processor.tools.resharding.reshard import STEPS, Reshard, Resharded, dependents

__all__ = ["STEPS", "Reshard", "Resharded", "dependents"]
