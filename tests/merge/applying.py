"""Sequence groups and merge rules applied to a delta, in one call."""

from __future__ import annotations

from processor.merge import Rules
from processor.record import Value


def change(rules: Rules, record: Value | None, delta: Value) -> int:
    """Change a delta in place by the rules; return the number of stale groups."""
    return len(rules.change(record, delta, rules.late(record, delta)))
