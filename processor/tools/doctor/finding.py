"""One line of the doctor's report."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """One line of the doctor's report."""

    level: Literal["ok", "warn", "fail"]
    """`fail`: something will not work; `warn`: something may not, or not for long."""
    subject: str
    """The subject of the check."""
    found: str
    """The state found."""
    to_do: str = ""
    """The remedy; empty if there is nothing to do."""
