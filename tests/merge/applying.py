"""Sequence groups and merge rules applied to a delta, in one call."""

from __future__ import annotations

from processor.merge import Rules
from processor.record import Value


def change(rules: Rules, record: Value | None, delta: Value) -> int:
    """Change a delta in place as the rules say; how many groups were stale."""
    return len(rules.change(record, delta, rules.late(record, delta)))
