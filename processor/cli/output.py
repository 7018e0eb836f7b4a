"""Writes a command's output: data to stdout, one flushed line each, and everything for people to stderr.

An error of a command becomes a line on stderr, and an exit code in one place.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from typer.core import TyperOption

from processor.errors import ConfigurationError, SowstreamError, without_controls

MessageT = TypeVar("MessageT")
_NUMBER = re.compile(r"-|[\d.,]*")
_NAMES = 2
"""The columns that name a row."""
_WORD_MAX = 24
"""Characters of the longest word of a cell that stays in one piece."""
_GAP = 2
_type_shown = getattr(TyperOption, "display_type_rich", lambda _option, _ctx: None)


def _type_shown_but_of_flags(option: TyperOption, ctx: Any) -> Any:
    return None if option.is_flag else _type_shown(option, ctx)


# Typer 0.29 writes `<bool>` behind each flag, and has no setting for it.
TyperOption.display_type_rich = _type_shown_but_of_flags  # type: ignore[assignment, method-assign]


def with_flowing_help(app: typer.Typer) -> typer.Typer:
    """Let the help of all commands fill the width of the terminal: Typer breaks each line where its docstring does.

    Args:
        app: the command line, whose commands are changed.

    Returns:
        The same command line.
    """
    for command in app.registered_commands:
        paragraphs = (command.help or inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            with_flowing_help(group.typer_instance)
    return app


class OutputClosed(Exception):
    """The reader of our output has closed it, as `head` does: a quiet end."""


def exit_code(name: str, call: Callable[[], object]) -> int:
    """Run a command line, and print an error that it raises; returns the exit code.

    Args:
        name: the name of the command line.
        call: runs it.
    """
    try:
        call()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except OutputClosed:
        # Nothing may be written when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SowstreamError as error:
        inform(f"{name}: {error}")
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415

        typer.echo(version("sowstream"))
        raise typer.Exit


Verbose: TypeAlias = Annotated[bool, typer.Option("--verbose", "-v", help="Log more, to stderr.")]
Version: TypeAlias = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
]


def write_any_character() -> None:
    """Let stdout take every character: data is UTF-8, as JSON is, in any locale.

    A terminal that cannot show a character gets its number.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")


def data(line: str) -> None:
    """Print one line of data, flushed at once; on a terminal without control characters."""
    if sys.stdout.isatty():
        line = without_controls(line)
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def inform(line: str) -> None:
    """Print one line for people, which may quote a record."""
    sys.stderr.write(f"{without_controls(line)}\n")


AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print a JSON object a line, for programs.")]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, names: Sequence[str] = ()) -> None:
    """Print a result in columns: drawn on a terminal, separated by tabs in a pipe, or as JSON.

    On a terminal a column that is empty in all rows is left out. If it is too narrow for the words of all columns, the
    last ones come below the table, a line for each row.

    Args:
        columns: the headings on a terminal.
        rows: the cells.
        names: prints an object a row, with these fields; none: columns.
    """
    if names:
        for row in rows:
            data(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
        return
    if not sys.stdout.isatty():
        for row in rows:
            data("\t".join(row))
        return
    from rich import box  # noqa: PLC0415 - only needed on a terminal
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cells, console = [*rows], Console()
    shown = [place for place in range(len(columns)) if not cells or any(row[place] for row in cells)]
    below: list[int] = []

    def drawn() -> Table:
        result = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for place in shown:
            is_number = all(_NUMBER.fullmatch(row[place]) for row in cells)
            result.add_column(columns[place], justify="right" if is_number else "left", no_wrap=is_number)
        for row in cells:
            result.add_row(*(Text(without_controls(row[place]), overflow="fold") for place in shown))
        return result

    def least_width(place: int) -> int:
        texts = [columns[place], *(row[place] for row in cells)]
        return min(_WORD_MAX, max((len(word) for text in texts for word in text.split()), default=0)) + _GAP

    while len(shown) > _NAMES and sum(map(least_width, shown)) > console.width:
        below.insert(0, shown.pop())
    console.print(drawn())
    for row in cells:
        texts = [f"{columns[place]}: {row[place]}" for place in below if row[place]]
        if texts:
            console.print(Text(without_controls(f"{' '.join(row[:_NAMES])}: {'; '.join(texts)}")))


@contextmanager
def records_read(doing: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show the number of records read so far, outside of a terminal nothing.

    Args:
        doing: the text next to the number.
        total: how many there are, which is shown as a bar; None: that is not known.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    words, number = TextColumn("{task.description}"), MofNCompleteColumn()
    columns = (SpinnerColumn(), words, number) if total is None else (words, BarColumn(), number, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda count: bar.advance(task, count)


def take_each(messages: Iterable[MessageT], take: Callable[[MessageT], None], count: int | None) -> int | None:
    """Take up to `count` messages; returns their number, or None if the user ended it."""
    taken = 0
    try:
        for message in messages:
            take(message)
            taken += 1
            if taken == count:
                break
    except KeyboardInterrupt:
        return None
    return taken


def require_all(taken: int | None, count: int | None) -> None:
    """End with exit code 1 if fewer messages came in time than were asked for."""
    if taken is not None and count is not None and taken < count:
        inform(f"{taken} of {count} messages came.")
        raise typer.Exit(1)
