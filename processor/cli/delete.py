"""`sowstream delete`: take a record out of a SOW topic."""

from __future__ import annotations

from typing import Annotated

import typer

from processor.cli.output import tell
from processor.cli.settings import Bootstrap, ConfigFile, TopicArgument, settings


def delete(
    topic: TopicArgument,
    key: Annotated[str, typer.Option(help="The record's SOW key.")],
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Delete a record. It is gone once the worker has read this; deleting what is not there is no error."""
    from processor.client import Client  # noqa: PLC0415

    with Client("delete", settings(config, bootstrap)) as client:
        client.sow_delete(topic, key)
        client.flush()
    tell(f"Deletion of {key!r} sent to {topic}.")
