"""Writes a command's output: data to stdout, one flushed line each, and everything for people to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence


class OutputClosed(Exception):
    """The reader of our output has closed it, as `head` does: a quiet end."""


def data(line: str) -> None:
    """Print one line of data, flushed at once."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def inform(line: str) -> None:
    """Print one line for people."""
    sys.stderr.write(f"{line}\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a result in columns: drawn on a terminal, separated by tabs in a pipe."""
    if not sys.stdout.isatty():
        for row in rows:
            data("\t".join(row))
        return
    from rich import box  # noqa: PLC0415 - only needed on a terminal
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        drawn.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console().print(drawn)
