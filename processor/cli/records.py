"""`sowstream sow`, `get`, `subscribe`, `delete` and `stats`: print, follow, delete and count the records of a topic."""

from __future__ import annotations

import json
import sys
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from processor.cli.output import AsJson, data, inform, records_read, require_all, table, take_each
from processor.cli.shared_options import ConfigFile, ReaderBootstrap, ReaderTopic, reader_settings
from processor.errors import counted
from processor.wire.subscriber_headers import iso

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from processor.client import Client, Message
    from processor.config import Config


Filter: TypeAlias = Annotated[
    str | None, typer.Option("--filter", metavar="FILTER", help='Which records, such as "/qty > 10".')
]
Select: TypeAlias = Annotated[
    str | None, typer.Option("--select", metavar="LIST", help="Which fields, such as -/,+/id,+/qty.")
]
OrderBy: TypeAlias = Annotated[
    str | None, typer.Option("--order-by", metavar="ORDER", help='In what order, such as "/qty DESC,/id".')
]
TopN: TypeAlias = Annotated[
    int | None, typer.Option("--top-n", min=0, metavar="N", help="At most N records of that order.")
]
SkipN: TypeAlias = Annotated[
    int | None, typer.Option("--skip-n", min=0, metavar="N", help="Without the first N of that order.")
]
SkipUnreadable: TypeAlias = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out records that cannot be read, and say which at the end.")
]

_SHOWN_MAX: Final = 10

_SAMPLE_MAX: Final = 1000
"""How many records are looked at for the fields of a filter that no record matches."""


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
        snapshot = client.sow(topic, matching, options, order_by=order_by, select=select, top_n=top_n, skip_n=skip_n)
        messages = snapshot if matching is None else _with_hint(snapshot, client, topic, matching)
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
        _print_unreadable(client.unreadable)


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


def _with_hint(messages: Iterable[Message], client: Client, topic: str, matching: str) -> Iterable[Message]:
    """The messages; if no record is among them, a field of the filter that no record has is printed at the end."""
    count = 0
    for message in messages:
        count += message.command == "sow"
        yield message
    if not count and (hint := _hint(client, topic, matching)):
        inform(hint)


def _hint(client: Client, topic: str, matching: str) -> str | None:
    """The first field of a filter that none of the first records has, with the field that may have been meant."""
    from processor.filter import compile_filter  # noqa: PLC0415

    firsts = islice((message.data for message in client.sow(topic) if message.command == "sow"), _SAMPLE_MAX)
    records = [record for record in firsts if isinstance(record, dict)]
    for path in compile_filter(matching).paths if records else ():
        objects: list[dict[str, Any]] = records
        for depth, name in enumerate(path):
            names = list(dict.fromkeys(name for one in objects for name in one))
            if not isinstance(name, str) or not names:
                break
            if name not in names:
                close = get_close_matches(name, names, n=1)
                parents = "".join(f"/{part}" for part in path[:depth])
                meant = f"; did you mean {parents}/{close[0]}?" if close else ""
                return f"None of the first {counted(len(records), 'record')} of {topic} has {parents}/{name}{meant}"
            objects = [one[name] for one in objects if isinstance(one.get(name), dict)]
    return None


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


def subscribe(
    topic: ReaderTopic,
    sow: Annotated[bool, typer.Option("--sow", help="Begin with the records as they are now.")] = False,
    delta: Annotated[bool, typer.Option("--delta", help="Key fields and changed fields instead of records.")] = False,
    matching: Filter = None,
    select: Select = None,
    oof: Annotated[bool, typer.Option("--oof", help="Tell of records that go out of focus.")] = False,
    no_empties: Annotated[bool, typer.Option("--no-empties", help="Tell no delta in which nothing changed.")] = False,
    no_sowkey: Annotated[bool, typer.Option("--no-sowkey", help="Leave sow_key out of deltas.")] = False,
    timestamp: Annotated[bool, typer.Option("--timestamp", help="Say when each record was emitted.")] = False,
    conflation: Annotated[
        str | None, typer.Option(metavar="TIME", help="Tell of a key at most once in this time: 500ms, auto, none.")
    ] = None,
    conflation_key: Annotated[
        str | None, typer.Option(metavar="PATHS", help="Conflate by these paths, such as /a,/b, not by the key.")
    ] = None,
    order_by: OrderBy = None,
    top_n: TopN = None,
    skip_n: SkipN = None,
    bookmark: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Replay from a message's bookmark, a time, epoch or now.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="On a terminal, a live table of the records.")] = False,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N messages.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="S", help="End when none came for S seconds.")] = None,
    skip_unreadable: SkipUnreadable = False,
    config: ConfigFile = None,
    bootstrap: ReaderBootstrap = None,
) -> None:
    """Print a message for each update, one per line, until Ctrl-C. Exit with 1 if fewer than --count came in time."""
    from processor.client import Client  # noqa: PLC0415

    flags = {"oof": oof, "no_empties": no_empties, "no_sowkey": no_sowkey, "timestamp": timestamp}
    asked: dict[str, Any] = {
        "filter": matching,
        "options": ",".join(name for name, is_on in flags.items() if is_on),
        "select": select,
        "conflation": conflation,
        "conflation_key": conflation_key,
        "order_by": order_by,
        "top_n": top_n,
        "skip_n": skip_n,
        "bookmark": bookmark,
        "timeout_s": timeout,
    }
    with Client("subscribe", reader_settings(config, bootstrap), skip_unreadable=skip_unreadable) as client:
        if table and sys.stdout.isatty():
            taken = _draw_live(client, topic, asked, count)
        else:
            taken = take_each(_form(client, sow=sow, delta=delta)(topic, **asked), _print, count)
        _print_unreadable(client.unreadable)
    require_all(taken, count)


def _form(client: Client, *, sow: bool, delta: bool) -> Callable[..., Iterable[Message]]:
    """The client's call for the chosen options."""
    if sow:
        return client.sow_and_delta_subscribe if delta else client.sow_and_subscribe
    return client.delta_subscribe if delta else client.subscribe


def _draw_live(client: Client, topic: str, asked: dict[str, Any], count: int | None) -> int | None:
    """Draw the records as a live table of the terminal's height."""
    from rich.console import Console  # noqa: PLC0415

    from processor.cli.live_table import LiveTable, draws, rows_of_terminal  # noqa: PLC0415
    from processor.subscriptions.request.record_order import SortOrder  # noqa: PLC0415

    console = Console()
    if not draws(console):
        return take_each(client.sow_and_delta_subscribe(topic, **asked), _print, count)
    if asked["top_n"] is None:
        asked["top_n"] = rows_of_terminal(console)
    # It identifies rows by key, and needs a message when a record leaves.
    flags = {*asked["options"].split(","), "oof"} - {"", "no_sowkey"}
    asked["options"] = ",".join(sorted(flags))
    messages = client.sow_and_delta_subscribe(topic, **asked)
    title = topic if asked["filter"] is None else f"{topic} where {asked['filter']}"
    order = None if asked["order_by"] is None else SortOrder(asked["order_by"])
    with LiveTable(console, title, order, matching=lambda: messages.matching) as live:
        return take_each(messages, live.take, count)


def _print_unreadable(unreadable: Mapping[str, Mapping[str, str]]) -> None:
    """Print the records that were left out: for each topic the number, and the first of them with the reason."""
    for topic, reasons in unreadable.items():
        inform(f"{topic}: {len(reasons)} records cannot be read and were left out:")
        for key, reason in list(reasons.items())[:_SHOWN_MAX]:
            inform(f"  {key!r:.100}: {reason}")


def _print(message: Message) -> None:
    data(message.to_json())
