"""`sowstream sow`, `get`, `delete` and `stats`: print, delete and count the records of a SOW topic."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from processor.cli.output import AsJson, counted, data, inform, records_read, table
from processor.cli.shared_options import (
    ConfigFile,
    Filter,
    OrderBy,
    ReaderBootstrap,
    ReaderTopic,
    Select,
    SkipN,
    SkipUnreadable,
    TopN,
    print_unreadable,
    reader_settings,
)
from processor.wire.subscriber_headers import iso

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.client import Message
    from processor.config import Config


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

    from processor.codec.json_value import to_json_line  # noqa: PLC0415
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

    from processor.cli.live_table import Sheet, picture  # noqa: PLC0415

    sheet = Sheet()
    for message in messages:
        sheet.take(message, 0)
    Console().print(picture(sheet, topic))


def delete(
    topic: ReaderTopic,
    key: Annotated[list[str] | None, typer.Option(help="A record's SOW key; may be repeated.")] = None,
    data: Annotated[str | None, typer.Option(metavar="JSON", help="A message with a record's key fields.")] = None,
    matching: Filter = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Send it, and do not wait for the workers' answers.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="S", help="Longest wait for the answers.  \\[default: a minute without any]"),
    ] = None,
    expect_version: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Delete the one record only if it has version N."),
    ] = None,
    config: ConfigFile = None,
    bootstrap: ReaderBootstrap = None,
) -> None:
    """Delete records by key, by data or by filter, and print how many were deleted.

    With --filter each partition's worker deletes the records that match when it processes the command: records
    published before it count, later ones do not. Deleting a key without a record is no error.
    """
    from processor.client import Client  # noqa: PLC0415

    if sum((bool(key), data is not None, matching is not None)) != 1:
        raise typer.BadParameter("give one of --key, --data and --filter")
    if expect_version is not None and (matching is not None or len(key or ()) > 1):
        raise typer.BadParameter("it is for one record: give one --key, or --data", param_hint="--expect-version")
    if expect_version is not None and no_wait:
        raise typer.BadParameter("the answer says whether it was deleted: leave out --no-wait")
    tree = reader_settings(config, bootstrap)
    selection: dict[str, Any] = {"keys": key or None, "filter": matching}
    if key and expect_version is not None:
        selection = {"key": key[0]}
    if data is not None:
        selection["data"] = _message(tree, topic, data)
    with Client("delete", tree) as client:
        ack = None if no_wait else "stats"
        future = client.sow_delete(topic, **selection, ack=ack, expect_version=expect_version)
        client.flush(timeout)
    if future is None:
        inform(f"Deletion sent to {topic}.")
        return
    deleted = future.result(0).records_deleted
    inform(f"{deleted:,} record{'' if deleted == 1 else 's'} deleted from {topic}.")


def _message(tree: Config, topic: str, text: str) -> Any:
    """Parse the key fields that are passed as JSON."""
    from processor.codec import load_codec  # noqa: PLC0415
    from processor.errors import RecordRejected  # noqa: PLC0415

    tree.topic(topic)
    try:
        return load_codec("json").decode(text.encode())
    except RecordRejected as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None


def stats(
    topic: ReaderTopic, as_json: AsJson = False, config: ConfigFile = None, bootstrap: ReaderBootstrap = None
) -> None:
    """Print for each partition the number of records, their bytes, and the offsets that a snapshot goes through.

    The SOW topic is read once, with about a hundred bytes of memory for each key. Kafka compacts it in the background:
    many more offsets than records mean that compaction is behind.
    """
    from processor.operate.topic_stats import topic_stats  # noqa: PLC0415

    tree = reader_settings(config, bootstrap)
    with records_read(f"reading {topic}") as on_read:
        of_partitions = topic_stats(tree, topic, on_read=on_read)
    if as_json:
        for one in of_partitions:
            data(json.dumps(one._asdict()))
        return
    columns = ("partition", "records", "bytes", "largest", "offsets", "updated")
    table(columns, [[*map(str, one[:-1]), _time(one.updated_ms)] for one in of_partitions])
    totals = (
        counted(sum(one.records for one in of_partitions), "record"),
        counted(sum(one.record_bytes for one in of_partitions), "byte"),
        counted(sum(one.offsets for one in of_partitions), "offset"),
    )
    inform(f"{topic}: {', '.join(totals)}.")


def _time(ms: int | None) -> str:
    return "" if ms is None else f"{iso(ms)[:19]}+00:00"
