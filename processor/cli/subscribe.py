"""`sowstream subscribe`: prints the updates of a topic as they arrive."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from processor.cli.output import data, inform
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.client import Client, Message


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
            taken = _draw(client, topic, asked, count)
        else:
            taken = _take(_form(client, sow=sow, delta=delta)(topic, **asked), _print, count)
        print_unreadable(client.unreadable)
    if taken is not None and count is not None and taken < count:
        inform(f"{taken} of {count} messages came.")
        raise typer.Exit(1)


def _form(client: Client, *, sow: bool, delta: bool) -> Callable[..., Iterable[Message]]:
    """The client's call for the chosen options."""
    if sow:
        return client.sow_and_delta_subscribe if delta else client.sow_and_subscribe
    return client.delta_subscribe if delta else client.subscribe


def _draw(client: Client, topic: str, asked: dict[str, Any], count: int | None) -> int | None:
    """Draw the records as a live table of the terminal's height."""
    from rich.console import Console  # noqa: PLC0415

    from processor.cli.live_table import LiveTable, draws, rows_of_terminal  # noqa: PLC0415
    from processor.subscriptions.request.record_order import SortOrder  # noqa: PLC0415

    console = Console()
    if not draws(console):
        return _take(client.sow_and_delta_subscribe(topic, **asked), _print, count)
    if asked["top_n"] is None:
        asked["top_n"] = rows_of_terminal(console)
    # It identifies rows by key, and needs a message when a record leaves.
    flags = {*asked["options"].split(","), "oof"} - {"", "no_sowkey"}
    asked["options"] = ",".join(sorted(flags))
    messages = client.sow_and_delta_subscribe(topic, **asked)
    title = topic if asked["filter"] is None else f"{topic} where {asked['filter']}"
    order = None if asked["order_by"] is None else SortOrder(asked["order_by"])
    with LiveTable(console, title, order) as live:
        return _take(messages, live.take, count)


def _print(message: Message) -> None:
    data(message.to_json())


def _take(messages: Iterable[Message], take: Callable[[Message], None], count: int | None) -> int | None:
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
