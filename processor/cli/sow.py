"""`sowstream sow` and `sowstream get`: print the state of the world, or one record of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from processor.cli.output import data, inform
from processor.cli.query import Filter, OrderBy, Select, SkipN, SkipUnreadable, TopN, print_unreadable
from processor.cli.settings import ConfigFile, ReaderBootstrap, ReaderTopic, reader_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.client import Message


def sow(
    topic: ReaderTopic,
    matching: Filter = None,
    select: Select = None,
    order_by: OrderBy = None,
    top_n: TopN = None,
    skip_n: SkipN = None,
    timestamp: Annotated[bool, typer.Option("--timestamp", help="Say when each record was emitted.")] = False,
    table: Annotated[bool, typer.Option("--table", help="On a terminal, a table instead of JSON lines.")] = False,
    only_data: Annotated[bool, typer.Option("--data", help="Print the records alone, without the message.")] = False,
    output: Annotated[
        Literal["json", "csv"], typer.Option("--format", help="csv: the records, a column for each field.")
    ] = "json",
    skip_unreadable: SkipUnreadable = False,
    config: ConfigFile = None,
    bootstrap: ReaderBootstrap = None,
) -> None:
    """Print the current records: one message per line, between group_begin and group_end.

    --data prints the records alone, one per line. --format csv prints them as a table of all fields, which is complete
    in memory before its first line; objects and arrays are JSON there.
    """
    from processor.client import Client  # noqa: PLC0415

    options = "timestamp" if timestamp else None
    with Client("sow", reader_settings(config, bootstrap), skip_unreadable=skip_unreadable) as client:
        messages = client.sow(topic, matching, order_by, options, select=select, top_n=top_n, skip_n=skip_n)
        if output == "csv":
            _print_csv(messages)
        elif table and sys.stdout.isatty():
            _draw(messages, topic)
        elif only_data:
            for message in messages:
                if message.command == "sow":
                    data(message.data_json())
        else:
            for message in messages:
                data(message.to_json())
        print_unreadable(client.unreadable)


def get(
    topic: ReaderTopic,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The record's SOW key.")],
    config: ConfigFile = None,
    bootstrap: ReaderBootstrap = None,
) -> None:
    """Print the current record of a key; exit with 1 if there is none.

    Only the key's partition is read; all partitions where the topic has foreign_partition: accept.
    """
    from processor.client import Client  # noqa: PLC0415

    with Client("get", reader_settings(config, bootstrap)) as client:
        message = client.get(topic, key)
    if message is None:
        inform(f"{topic} has no record {key!r}.")
        raise typer.Exit(1)
    data(message.data_json())


def _print_csv(messages: Iterable[Message]) -> None:
    """Print all records as CSV after RFC 4180, in order of arrival."""
    import csv  # noqa: PLC0415
    import io  # noqa: PLC0415

    from processor.codec.display import to_json_line  # noqa: PLC0415
    from processor.errors import Stop  # noqa: PLC0415

    records = [message.data for message in messages if message.command == "sow"]
    if not all(isinstance(record, dict) for record in records):
        raise Stop("csv needs records with fields; records of this topic have none")
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="")

    def line(cells: Iterable[object]) -> None:
        writer.writerow(cells)
        data(text.getvalue())
        text.seek(0)
        text.truncate()

    line(names)
    for record in records:
        cells = (record.get(name) for name in names)
        line("" if cell is None else cell if isinstance(cell, str) else to_json_line(cell) for cell in cells)


def _draw(messages: Iterable[Message], topic: str) -> None:
    """Print all records as one table, in order of arrival."""
    from rich.console import Console  # noqa: PLC0415

    from processor.cli.table import Sheet, picture  # noqa: PLC0415

    sheet = Sheet()
    for message in messages:
        sheet.take(message, 0)
    Console().print(picture(sheet, topic))
