"""The output of the stages of a view: contributions and keys of joins for the next stage, changed rows, and gauges."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Final

from processor.api.builtin import builtin_context
from processor.codec import load_codec
from processor.filter.aggregate import Contribution, plain
from processor.filter.evaluation import UNCOUNTED, compile_path
from processor.filter.value import first
from processor.values.key_text import group_key, text_of_key_text
from processor.values.pointer import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from processor.api import Context, Headers, Value


# Contribution(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class Contributions:
    """Writes and reads contributions, with every digit of their numbers."""

    def __init__(self) -> None:
        """Load the message type."""
        self._codec = load_codec("json")

    def encode_many(self, contributions: Iterable[Contribution]) -> list[bytes]:
        """Write contributions, whose values are finite numbers, texts, truth values and NULL alone."""
        write = self._codec.encode_decoded
        return [
            write([timestamp_ms, partition, offset, list(group), list(arguments)])
            for (timestamp_ms, partition, offset), group, arguments in contributions
        ]

    def decode_many(self, messages: Sequence[bytes]) -> list[Contribution]:
        """Read contributions that `encode_many` wrote, parsed together."""
        return [
            _new(Contribution, ((timestamp_ms, partition, offset), tuple(group), tuple(arguments)))
            for timestamp_ms, partition, offset, group, arguments in self._codec.decode_own_many(messages)
        ]


def plain_value(text: str) -> Value:
    """Return the grouping value of a key of plain records: one of a text that reads as a number has quotation marks."""
    if not text:
        return None
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() else text_of_key_text(text)


KEPT: Final = b"k"
"""Begins the member of a reference that lies where the rows are."""

LEFT: Final = b"l"
"""Begins the member of a record of the underlying, and of a reference to one."""

RIGHT: Final = b"r"
"""Begins the member of a record of a joined topic, and of the answer about one."""

BEFORE_RIGHT: Final = b"q"
"""Sorts behind all members that begin with `KEPT` or `LEFT` and before those that begin with `RIGHT`."""


def join_key(pointers: Iterable[str]) -> Callable[[Value], str | None]:
    """Return a function of a record: its key in a join, None where one of the fields is NULL, which equals nothing.

    Args:
        pointers: the fields, as JSON Pointers.
    """
    paths = [compile_path(names(pointer)) for pointer in pointers]

    def key(record: Value) -> str | None:
        values = tuple([plain(first(path(record, UNCOUNTED))) for path in paths])
        return None if None in values else group_key(values).decode(errors="surrogatepass")

    return key


def meeting(place: int, key: str) -> bytes:
    """Return the group in which the records with a key meet.

    Args:
        place: the number of the joined topic in the view, from 1.
        key: the key.
    """
    return b"%d/%b" % (place, key.encode(errors="surrogatepass"))


def answer_member(place: int, key: str = "") -> bytes:
    """Return the member of the answer about a partner; `key` is empty where the records meet by their own keys."""
    return RIGHT + meeting(place, key)


def write_keys(keys: list[str | None]) -> bytes:
    """Write the keys of a record of the underlying, one for each joined topic."""
    # As json.dumps writes it, in a quarter of its time.
    texts = ["null" if key is None else encode_basestring_ascii(key) for key in keys]
    return f"[{', '.join(texts)}]".encode()


def read_keys(data: bytes) -> list[str | None]:
    """Read the keys that `write_keys` wrote."""
    keys: list[str | None] = json.loads(data)
    return keys


class RowWriter:
    """Compares rows with the SOW records, and writes those that differ."""

    def __init__(self, context: Context) -> None:
        """Create it for one partition."""
        self._context = builtin_context(context)

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
