"""`sowstream subscribe`: what happens to a topic, as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import data, tell
from processor.cli.settings import Bootstrap, ConfigFile, TopicArgument, settings

if TYPE_CHECKING:
    from processor.client import Subscription


def subscribe(
    topic: TopicArgument,
    sow: Annotated[bool, typer.Option("--sow", help="Begin with every record as it is now.")] = False,
    delta: Annotated[bool, typer.Option("--delta", help="Key fields and changed fields instead of records.")] = False,
    oof: Annotated[bool, typer.Option("--oof", help="Tell of records deleted or expired.")] = False,
    no_empties: Annotated[bool, typer.Option("--no-empties", help="Tell no delta in which nothing changed.")] = False,
    no_sowkey: Annotated[bool, typer.Option("--no-sowkey", help="Leave sow_key out of deltas.")] = False,
    timestamp: Annotated[bool, typer.Option("--timestamp", help="Say when each record was emitted.")] = False,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N messages.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="S", help="End when none came for S seconds.")] = None,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print a message for each update, one a line, until Ctrl-C. Exit with 1 if fewer than --count came in time."""
    from processor.client import Client  # noqa: PLC0415

    flags = {"oof": oof, "no_empties": no_empties, "no_sowkey": no_sowkey, "timestamp": timestamp}
    options = ",".join(name for name, is_on in flags.items() if is_on)
    with Client("subscribe", settings(config, bootstrap)) as client:
        form = {
            (False, False): client.subscribe,
            (True, False): client.sow_and_subscribe,
            (False, True): client.delta_subscribe,
            (True, True): client.sow_and_delta_subscribe,
        }[sow, delta]
        told = _print(form(topic, options=options, timeout_s=timeout), count)
    if told is not None and count is not None and told < count:
        tell(f"{told} of {count} messages came.")
        raise typer.Exit(1)


def _print(subscription: Subscription, count: int | None) -> int | None:
    """Print messages, as many as asked for; how many it were, None if the user ended it."""
    told = 0
    try:
        for message in subscription:
            data(message.to_json())
            told += 1
            if told == count:
                break
    except KeyboardInterrupt:
        return None
    return told
