"""Compares topics as they are with topics as they should be: what breaks a promise, and what to do about it. Pure."""

from processor.topic_problems.changed import changes, remade
from processor.topic_problems.cleanup import COMPACTION_LAG_MS
from processor.topic_problems.compare import problems
from processor.topic_problems.control import control_problems
from processor.topic_problems.copies import internal_problems
from processor.topic_problems.derived import make_anew
from processor.topic_problems.directory import directory_problems
from processor.topic_problems.partitions import grown
from processor.topic_problems.problem import FoundTopic, Problem
from processor.topic_problems.retention import kept_ms

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
    "make_anew",
    "problems",
    "remade",
]
