"""The topics of an installation: their names, their settings, and the checks of the topics on the cluster. Pure.

`family` defines the topics of one SOW topic's family, and the two that all families share. The other modules compare
topics as they are with topics as they should be, and return problems, each with its remedy: `checks` runs all rules
before a worker starts, and those for a running worker. `processor.installation` reads and writes the records of
the two shared topics.
"""

from processor.topics.checks import (
    changes,
    control_problems,
    directory_problems,
    grown,
    problems,
    rebuild_steps,
    recreated,
)
from processor.topics.durability import COMPACTION_LAG_MS, internal_problems, kept_ms
from processor.topics.problem import ActualTopic, Problem

__all__ = [
    "COMPACTION_LAG_MS",
    "ActualTopic",
    "Problem",
    "changes",
    "control_problems",
    "directory_problems",
    "grown",
    "internal_problems",
    "kept_ms",
    "problems",
    "rebuild_steps",
    "recreated",
]
