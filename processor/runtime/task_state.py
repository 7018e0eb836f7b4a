"""The life cycle of a task: its states and the legal moves between them."""

from __future__ import annotations

import enum
from typing import Final


class TaskState(enum.Enum):
    """The life cycle of a task.

    ::

        CREATED ──open──▶ RESTORING ──start──▶ RUNNING
           │                │    ▲                │ │
           │                │    └────rewind──────┘ │
           └─────close──────┴──────close────────────┴──▶ CLOSED

    A rewind follows every aborted transaction: the task drops its uncommitted changes and begins again at the offset
    that Kafka has committed. Aborts, lost producers and commits with unknown outcome are handled in the same way.
    """

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    CLOSED = "closed"
    HELD = "held"
    """Shown for a created or restoring task that waits for its next retry."""


MOVES: Final = {
    "open": ({TaskState.CREATED}, TaskState.RESTORING),
    "start": ({TaskState.RESTORING}, TaskState.RUNNING),
    "rewind": ({TaskState.RUNNING}, TaskState.RESTORING),
    "close": ({TaskState.CREATED, TaskState.RESTORING, TaskState.RUNNING}, TaskState.CLOSED),
}
"""For each method of a task the states in which it may be called, and the state that follows."""
