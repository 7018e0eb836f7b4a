"""Compares topics as they are with topics as they should be: what breaks a promise, and what to do about it. Pure."""

from processor.topics.changes import changes, recreated
from processor.topics.checks import problems
from processor.topics.compaction import COMPACTION_LAG_MS
from processor.topics.partitions import grown
from processor.topics.problem import FoundTopic, Problem
from processor.topics.rebuild import rebuild_steps
from processor.topics.replication import internal_problems
from processor.topics.retention import kept_ms
from processor.topics.shared import control_problems, directory_problems

__all__ = [
    "COMPACTION_LAG_MS",
    "FoundTopic",
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
