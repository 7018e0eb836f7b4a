"""`sowstream sow` and `sowstream get`: print the state of the world, or one record of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

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
    skip_unreadable: SkipUnreadable = False,
    config: ConfigFile = None,
    bootstrap: ReaderBootstrap = None,
) -> None:
    """Print the current records: one message per line, between group_begin and group_end."""
    from processor.client import Client  # noqa: PLC0415

    options = "timestamp" if timestamp else None
    with Client("sow", reader_settings(config, bootstrap), skip_unreadable=skip_unreadable) as client:
        messages = client.sow(topic, matching, order_by, options, select=select, top_n=top_n, skip_n=skip_n)
        if table and sys.stdout.isatty():
            _draw(messages, topic)
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


def _draw(messages: Iterable[Message], topic: str) -> None:
    """Print all records as one table, in order of arrival."""
    from rich.console import Console  # noqa: PLC0415

    from processor.cli.table import Sheet, picture  # noqa: PLC0415

    sheet = Sheet()
    for message in messages:
        sheet.take(message, 0)
    Console().print(picture(sheet, topic))
