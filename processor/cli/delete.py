"""`sowstream delete`: take records out of a SOW topic."""

from __future__ import annotations

from typing import Annotated

import typer

from processor.cli.output import tell
from processor.cli.query import Filter
from processor.cli.settings import ConfigFile, ReaderBootstrap, ReaderTopic, reader_settings


def delete(
    topic: ReaderTopic,
    key: Annotated[str | None, typer.Option(help="The record's SOW key.")] = None,
    matching: Filter = None,
    config: ConfigFile = None,
    bootstrap: ReaderBootstrap = None,
) -> None:
    """Delete a record, or with --filter all that match now. It is gone once the worker has read this.

    Deleting what is not there is no error.
    """
    from processor.client import Client  # noqa: PLC0415

    if (key is None) is (matching is None):
        raise typer.BadParameter("give --key, or --filter")
    with Client("delete", reader_settings(config, bootstrap)) as client:
        if key is not None:
            client.sow_delete(topic, key)
            client.flush()
            tell(f"Deletion of {key!r} sent to {topic}.")
            return
        deleted = 0
        for message in client.sow(topic, matching, select="-/"):
            if message.sow_key is not None:
                client.sow_delete(topic, message.sow_key)
                deleted += 1
        client.flush()
    tell(f"Deletion of {deleted:,} record{'' if deleted == 1 else 's'} sent to {topic}.")
