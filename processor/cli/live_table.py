"""A live table of a subscription's records: redrawn in place on a terminal."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from processor.codec.json_value import to_json_line
from processor.errors import counted, without_controls
from processor.filter.evaluation import NO_METADATA
from processor.merge import apply_delta
from processor.subscriptions.request.record_order import SortOrder

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from processor.client import Message
    from processor.record import Value

_REDRAWS_PER_S: Final = 4
_BRIGHT_S: Final = 1.0
_AROUND_ROWS: Final = 6
"""Lines of the terminal that are not rows: the title, the head, its rule, the line below."""
_ROWS_MIN: Final = 3
_CELL_CHARACTERS: Final = 40
_NOTHING: Final = object()
_WHOLE: Final = "value"
"""The column of records that are not objects."""


def rows_of_terminal(console: Console) -> int:
    """The number of records that fit a terminal."""
    return max(_ROWS_MIN, console.height - _AROUND_ROWS)


def draws(console: Console) -> bool:
    """Return whether the console can redraw lines."""
    return console.is_terminal and not console.is_dumb_terminal


class Sheet:
    """The records of a subscription by key, with the time of each field's last change."""

    def __init__(self, order: SortOrder | None = None) -> None:
        """Start without records.

        Args:
            order: the order of the rows; None: by first arrival.
        """
        self._order = order
        self.records: dict[str, Value] = {}
        """The records by SOW key."""
        self.moved_s: dict[tuple[str, str], float] = {}
        """The time at which a field of a record last changed."""
        self.messages = 0
        """The number of messages applied."""

    def take(self, message: Message, now_s: float) -> None:
        """Apply a message."""
        self.messages += 1
        key = message.sow_key
        if message.command == "group_begin":
            self.records.clear()
        if key is None:
            return
        if message.command == "oof":
            self.records.pop(key, None)
            return
        if message.command != "sow":
            old_fields = _fields(self.records.get(key, {}))
            new_fields = _fields(message.data).items()
            self.moved_s |= {
                (key, name): now_s for name, value in new_fields if old_fields.get(name, _NOTHING) != value
            }
        if message.delta:
            self.records[key] = apply_delta(self.records.get(key), message.data, message.removed)
        else:
            self.records[key] = message.data

    def rows(self) -> list[tuple[str, Value]]:
        """Keys and records, in order."""
        order = self._order
        if order is None:
            return list(self.records.items())
        return sorted(self.records.items(), key=lambda row: order.key(row[0].encode(), row[1], NO_METADATA))

    def forget(self, before_s: float) -> None:
        """Forget changes before a time."""
        self.moved_s = {field: when_s for field, when_s in self.moved_s.items() if when_s >= before_s}


class LiveTable:
    """The sheet on a terminal, drawn a few times a second by a thread of its own."""

    def __init__(
        self,
        console: Console,
        title: str,
        order: SortOrder | None = None,
        *,
        matching: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Make one; entering it begins to draw.

        Args:
            console: where.
            title: what stands above.
            order: how the rows are sorted; None: by key.
            matching: returns the number of records that match, drawn or not; None: not known. Called by the thread.
        """
        self._matching = matching
        self._sheet = Sheet(SortOrder(None) if order is None else order)
        self._title = title
        self._console = console
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._live = Live(  # Draws at once: it comes last.
            console=console, get_renderable=self._picture, refresh_per_second=_REDRAWS_PER_S, vertical_overflow="crop"
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def take(self, message: Message) -> None:
        """Apply a message."""
        with self._lock:
            self._sheet.take(message, time.monotonic())

    def _picture(self) -> RenderableType:
        now_s = time.monotonic()
        with self._lock:
            self._sheet.forget(now_s - _BRIGHT_S)
            rows_max, elapsed_s = rows_of_terminal(self._console), now_s - self._began_s
            return picture(self._sheet, self._title, rows_max, elapsed_s, self._matching())


def picture(
    sheet: Sheet,
    title: str,
    rows_max: int | None = None,
    elapsed_s: float | None = None,
    matching: int | None = None,
) -> RenderableType:
    """Draw the sheet: fields that changed within the last second are bright.

    Args:
        sheet: the records.
        title: the title above the table.
        rows_max: the limit of rows; None: no limit.
        elapsed_s: time since the first message; None: a finished query.
        matching: the number of records that match, in the sheet or not; None: not known.
    """
    rows = sheet.rows()
    total = max(len(rows), matching or 0)
    rows = rows[:rows_max]
    columns = list(dict.fromkeys(name for _, record in rows for name in _fields(record)))
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(Text(without_controls(name)), overflow="ellipsis", max_width=_CELL_CHARACTERS, no_wrap=True)
    for key, record in rows:
        fields = _fields(record)
        table.add_row(*(_cell(fields, name, is_bright=(key, name) in sheet.moved_s) for name in columns))
    below = counted(total, "record") if len(rows) == total else f"{len(rows):,} of {counted(total, 'record')}"
    if elapsed_s is not None:
        below += f", {counted(sheet.messages, 'message')} in {elapsed_s:.0f} s"
    return Group(table, Text(below, style="dim"))


def _cell(fields: dict[str, Value], name: str, *, is_bright: bool) -> Text:
    if name not in fields:
        return Text("")
    value = fields[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = without_controls(value if isinstance(value, str) else to_json_line(value))
    return Text(text, style="bold yellow" if is_bright else "", justify="right" if is_number else "left")


def _fields(record: Value) -> dict[str, Value]:
    return record if isinstance(record, dict) else {_WHOLE: record}
