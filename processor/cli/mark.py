"""`sowstream mark`: prints the highest number that workers have taken from a publisher."""

from __future__ import annotations

from typing import Annotated

import typer

from processor.cli.output import data, inform
from processor.cli.settings import ConfigFile, ReaderBootstrap, ReaderTopic, reader_settings


def mark(
    topic: ReaderTopic,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The publisher's name, as in header client.")],
    config: ConfigFile = None,
    bootstrap: ReaderBootstrap = None,
) -> None:
    """Print the highest sequence that was taken from a publisher; exit code 1 if none was.

    The publisher may go on above it.
    """
    from processor.client import Client  # noqa: PLC0415

    with Client(client, reader_settings(config, bootstrap)) as publisher:
        highest = publisher.mark(topic)
    if highest is None:
        inform(f"{topic}: no sequence was taken from {client!r}.")
        raise typer.Exit(1)
    data(str(highest))
