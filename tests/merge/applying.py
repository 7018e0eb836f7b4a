"""Sequence groups and merge rules applied to a delta, in one call."""

from __future__ import annotations

from processor.merge import Rules
from processor.record import Value


def change(rules: Rules, record: Value | None, delta: Value) -> int:
    """Change a delta in place by the rules, for a record without stamps; return the number of stale groups."""
    if not rules.has_groups:
        rules.change(record, delta)
        return 0
    update = rules.update(record, delta, b"")
    update.reduce(delta)
    assert update.gone == [], "no delta of this test replaces a part of an object"
    rules.change(record, delta, update.overruled)
    return update.stale_groups
