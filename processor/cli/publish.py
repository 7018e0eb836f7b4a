"""`sowstream publish`: JSON lines into a SOW topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from processor.cli.output import tell
from processor.cli.settings import Bootstrap, ConfigFile, TopicArgument, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.client import Client

_COMPLAINTS_MAX = 20  # Lines told one by one; the summary has the number of all.
_PROGRESS_LINES = 1000


class PublishCommand(StrEnum):
    """What a line may ask for."""

    PUBLISH = "publish"
    DELTA_PUBLISH = "delta_publish"


def publish(
    topic: TopicArgument,
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="One message a line; - is standard input.")] = "-",
    command: Annotated[PublishCommand | None, typer.Option(help="Default: the topic's default_command.")] = None,
    key: Annotated[str | None, typer.Option(help="The SOW key of every line. Default: its key fields.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A header; may be repeated.")] = None,
    ack: Annotated[str | None, typer.Option(help="Not supported yet.")] = None,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Publish JSON lines. A line that cannot be sent is told and left out; the others are sent; the exit code is 1."""
    from processor.client import Client  # noqa: PLC0415
    from processor.client.publishing import publishable  # noqa: PLC0415
    from processor.errors import ConfigurationError  # noqa: PLC0415

    if ack is not None:
        raise ConfigurationError(
            "--ack is not supported yet; without it, a line counts as sent once Kafka has it on all in-sync replicas"
        )
    headers = _headers(header or [])
    tree = settings(config, bootstrap)
    chosen = command or PublishCommand(publishable(tree, topic).default_command)
    with Client("publish", tree) as client, _lines(file) as lines, _progress(file) as advance:
        sent, refused = _send_all(client, chosen, topic, lines, key, headers, advance)
        client.flush()
    tell(f"{sent} records sent to {topic}" + (f", {refused} lines refused." if refused else "."))
    if refused:
        raise typer.Exit(1)


def _send_all(
    client: Client,
    command: PublishCommand,
    topic: str,
    lines: BinaryIO,
    key: str | None,
    headers: dict[str, str],
    advance: Callable[[int], None],
) -> tuple[int, int]:
    """Send every line; how many were sent, and how many refused."""
    from processor.errors import RecordRejected  # noqa: PLC0415

    send = client.publish if command is PublishCommand.PUBLISH else client.delta_publish
    sent = refused = size_bytes = 0
    for number, line in enumerate(lines, 1):
        size_bytes += len(line)
        if number % _PROGRESS_LINES == 0:
            advance(size_bytes)
            size_bytes = 0
        if not (message := line.strip()):
            continue
        try:
            send(topic, message, key, headers)
        except RecordRejected as error:
            refused += 1
            if refused <= _COMPLAINTS_MAX:
                tell(f"line {number}: not sent: {error}")
        else:
            sent += 1
    advance(size_bytes)
    return sent, refused


def _headers(given: list[str]) -> dict[str, str]:
    headers = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not K=V", param_hint="--header")
        headers[name] = value
    return headers


@contextmanager
def _lines(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = open(file, "rb")  # noqa: PTH123, SIM115 - closed below
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None
    with opened:
        yield opened


@contextmanager
def _progress(file: str) -> Iterator[Callable[[int], None]]:
    """A bar for a file, a spinner for a stream; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from pathlib import Path  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn  # noqa: PLC0415

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = None if file == "-" else Path(file).stat().st_size
        task = bar.add_task("publishing", total=total)
        yield lambda size_bytes: bar.advance(task, size_bytes)
