"""Compares topics as they are with topics as they should be: what breaks a promise, and what to do about it. Pure."""

from processor.topics.changes import changes, remade
from processor.topics.checks import problems
from processor.topics.compaction import COMPACTION_LAG_MS
from processor.topics.control import control_problems
from processor.topics.directory import directory_problems
from processor.topics.partitions import grown
from processor.topics.problem import FoundTopic, Problem
from processor.topics.rebuild import make_anew
from processor.topics.replication import internal_problems
from processor.topics.retention import kept_ms

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
