"""What one check found."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """One line of the doctor's report."""

    level: Literal["ok", "warn", "fail"]
    """`fail`: something will not work; `warn`: something may not, or not for long."""
    subject: str
    """What was looked at."""
    found: str
    """What it is like."""
    to_do: str = ""
    """What to do about it; empty if nothing."""
