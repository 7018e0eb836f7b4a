"""Texts of foreign programs, of any length and number, do not fill the memory of a program that reads them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from processor.client.feeds.compact_records import CompactRecords
from processor.codec.avro.delta import fields_header, read_fields
from processor.codec.nvfix import python_encoding
from processor.codec.xml import is_name
from processor.errors import RecordRejected
from processor.kafka.message import Message
from processor.values import CACHE_SIZE_MAX, CACHED_SIZE_MAX, cached_by_text
from processor.values.instant import read_time
from processor.values.key_text import key_text
from processor.wire.command import CommandReader

KEPT_BYTES_MAX = 16 * CACHE_SIZE_MAX
"""Most memory of one cache: its texts, the results, and the tables of both."""

_commands = CommandReader("delta_publish")


class _Records:
    """Reads records with a header that travels on, as a client does, and drops them."""

    def __init__(self) -> None:
        self._records = CompactRecords()

    def __call__(self, text: str) -> None:
        headers: list[tuple[str, str | bytes | None]] = [("trace", text.encode())]
        self._records.records([Message(key=b"k", value=b"{}", headers=headers, offset=0, timestamp=(1, 5))])


READERS: dict[str, Callable[[], Callable[[str], object]]] = {
    "name of a header": lambda: lambda text: _commands.read([(text, b"")]),
    "headers of a record": _Records,
    "name of an XML element": lambda: lambda text: is_name(f"n{text}"),
    "encoding of FIX": lambda: python_encoding,
    "fields of an Avro delta that is written": lambda: lambda text: fields_header({text: 1}, {}),
    "header fields of an Avro delta": lambda: lambda text: read_fields(b'["/%b"]' % text.encode()),
    "value of a group": lambda: key_text,
    "time in a filter": lambda: lambda text: read_time(f"2026-11-30T12:00:00.{text}"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("size", "count"), [(CACHED_SIZE_MAX // 2, 20_000), (1_000_000, 20)])
def test_texts_of_any_size_and_number_do_not_stay_in_memory(reader, size, count):
    """Ten megabytes of different texts are read, and no more than a cache may hold stays."""
    read = READERS[reader]()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            with suppress(RecordRejected):
                read(f"{number:0{size}d}")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < KEPT_BYTES_MAX


def test_a_result_is_computed_once_for_a_short_text():
    """A text that comes again has its result from the cache, also after a full cache was emptied."""
    computed = []
    cached = cached_by_text(lambda text: computed.append(text) or text.upper())
    texts = [f"{number:0{CACHED_SIZE_MAX}d}" for number in range(CACHE_SIZE_MAX // CACHED_SIZE_MAX + 1)]
    assert [cached(text) for text in ["a", "a", *texts, "a", "a"]] == ["A", "A", *texts, "A", "A"]
    assert computed == ["a", *texts, "a"]
