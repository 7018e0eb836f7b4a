"""The states of a task, and how it comes from one to another."""

from __future__ import annotations

import enum
from typing import Final


class TaskState(enum.Enum):
    """Where a task is in its life.

    ::

        CREATED ──open──▶ RESTORING ──start──▶ RUNNING
           │                │    ▲                │ │
           │                │    └────rewind──────┘ │
           └─────close──────┴──────close────────────┴──▶ CLOSED

    A rewind follows every aborted transaction: the task forgets what was not committed and begins again from what
    Kafka says was. The same way serves an abort, a lost producer and a commit nobody knows the end of.
    """

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    CLOSED = "closed"
    HELD = "held"
    """Shown for a task that waits, created or restoring, until it is asked again."""


MOVES: Final = {
    "open": ({TaskState.CREATED}, TaskState.RESTORING),
    "start": ({TaskState.RESTORING}, TaskState.RUNNING),
    "rewind": ({TaskState.RUNNING}, TaskState.RESTORING),
    "close": ({TaskState.CREATED, TaskState.RESTORING, TaskState.RUNNING}, TaskState.CLOSED),
}
"""For each method of a task the states in which it may be called, and the one that follows."""
