"""`sowstream sow` and `sowstream get`: the state of the world, whole or one record of it."""

from __future__ import annotations

from typing import Annotated

import typer

from processor.cli.output import data, tell
from processor.cli.settings import Bootstrap, ConfigFile, TopicArgument, settings


def sow(
    topic: TopicArgument,
    timestamp: Annotated[bool, typer.Option("--timestamp", help="Say when each record was emitted.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print every record as it is now: one message a line, between group_begin and group_end."""
    from processor.client import Client  # noqa: PLC0415

    with Client("sow", settings(config, bootstrap)) as client:
        for message in client.sow(topic, options="timestamp" if timestamp else None):
            data(message.to_json())


def get(
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The record's SOW key.")],
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print one record as it is now; exit with 1 if there is none. Only its partition is read."""
    from processor.client import Client  # noqa: PLC0415

    with Client("get", settings(config, bootstrap)) as client:
        message = client.get(topic, key)
    if message is None:
        tell(f"{topic} has no record {key!r}.")
        raise typer.Exit(1)
    data(message.data_json())
