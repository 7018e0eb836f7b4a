"""Writes the rows of a view that have changed, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.api import Context, Headers, Value


class RowWriter:
    """Compares rows with the SOW records, and writes those that differ."""

    def __init__(self, context: Context) -> None:
        """Create it for one partition."""
        self._context = context

    def write(self, rows: Mapping[bytes, Value | None], headers: Headers | None = None) -> int:
        """Write the rows that differ from the SOW records; None deletes.

        A row that is too large for the topic is left as it is, and counted as `rows_refused`.

        Args:
            rows: by key.
            headers: more headers of both outputs.

        Returns:
            The number of rows that were too large.
        """
        refused = self._context.put_changed(rows, headers)
        if refused:
            self._context.count("rows_refused", len(refused))
        return len(refused)


def show_ready(context: Context, *, is_ready: bool) -> None:
    """Show whether a stage has caught up with its input."""
    context.gauge("view_ready", float(is_ready))


def show_groups(context: Context, count: int) -> None:
    """Show the number of groups that a stage has in memory."""
    context.gauge("groups_in_memory", count)
