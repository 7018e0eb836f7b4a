"""Progress for people: a count of records on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def records_read(doing: str) -> Iterator[Callable[[int], None]]:
    """Show the number of records read so far.

    Args:
        doing: the text next to the number.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda count: bar.advance(task, count)
