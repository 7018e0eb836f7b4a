"""`sowstream delete`: deletes records of a SOW topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from processor.cli.output import inform
from processor.cli.query import Filter
from processor.cli.settings import ConfigFile, ReaderBootstrap, ReaderTopic, reader_settings

if TYPE_CHECKING:
    from processor.config import Config


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
