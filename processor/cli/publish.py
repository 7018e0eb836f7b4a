"""`sowstream publish` and `mark`: publish JSON lines to a SOW topic, and print a publisher's highest number."""

from __future__ import annotations

import sys
import threading
import time
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeAlias

import typer

from processor.cli.output import data, inform
from processor.cli.shared_options import ConfigFile, ReaderBootstrap, ReaderTopic, reader_settings

if TYPE_CHECKING:
    from concurrent.futures import Future

    from processor.client import Ack
    from processor.codec import Codec
    from processor.config import Config
    from processor.record import Value


Show: TypeAlias = Callable[[int, int], None]
"""Shows progress: the bytes sent since the last call, and the number of acknowledged lines in all."""

_COMPLAINTS_MAX = 20  # Failed lines that are reported one by one; the summary has the number of all.
_SHOWN_EVERY = 1000
_BAR_AFTER_S = 1.0


class Tally:
    """Counts the lines, and reports the first failures. Acks arrive on the client's thread."""

    def __init__(self, show: Show, *, wants_acks: bool) -> None:
        self.sent = 0
        """Lines that were sent to the client."""
        self.acknowledged = 0
        """Lines whose last ack arrived."""
        self._refused = self._rejected = self._conflicts = self._duplicates = 0
        self._show = show
        self._wants_acks = wants_acks
        self._lock = threading.Lock()

    @property
    def is_bad(self) -> bool:
        """True if any line failed."""
        return bool(self._refused or self._rejected or self._conflicts)

    def refuse(self, number: int, error: Exception) -> None:
        """Count a line that was not sent."""
        with self._lock:
            self._refused += 1
            self._complain(f"line {number}: not sent: {error}")

    def settle(self, number: int, done: Future[Ack]) -> None:
        """Count a line that was acknowledged, was rejected, or did not reach Kafka."""
        from processor.errors import AcksMissing, PublishRejected, VersionConflict  # noqa: PLC0415

        error = done.exception()
        with self._lock:
            if error is None:
                self.acknowledged += 1
                self._duplicates += done.result().is_duplicate
                if self.acknowledged % _SHOWN_EVERY == 0:
                    self._show(0, self.acknowledged)
            elif isinstance(error, VersionConflict):
                self._conflicts += 1
                self._complain(f"line {number}: not applied: {error}")
            elif not isinstance(error, AcksMissing):  # Those are reported together, by the caller that waits for them.
                self._rejected += 1
                outcome = "rejected" if isinstance(error, PublishRejected) else "not delivered"
                self._complain(f"line {number}: {outcome}: {error}")

    def summary(self, topic: str) -> str:
        """The counts in one sentence."""
        with self._lock:
            acknowledged = f", {self.acknowledged} acknowledged" if self._wants_acks else ""
            if self._duplicates:
                acknowledged += f" ({self._duplicates} as duplicates)"
            rejected = f", {self._rejected} rejected" if self._rejected else ""
            if self._conflicts:
                rejected += f", {self._conflicts} not applied to another version"
            lines, records = ("line" if self._refused == 1 else "lines"), ("record" if self.sent == 1 else "records")
            refused = f", {self._refused} {lines} refused" if self._refused else ""
            return f"{self.sent} {records} sent to {topic}{acknowledged}{rejected}{refused}."

    def _complain(self, line: str) -> None:
        if self._refused + self._rejected + self._conflicts <= _COMPLAINTS_MAX:
            inform(line)


_PROGRESS_LINES = 1000
_OF_BYTES = ("binary", "protobuf")  # Message types whose messages may be bytes, which JSON cannot represent.


class PublishCommand(StrEnum):
    """The commands that a line may be published with."""

    PUBLISH = "publish"
    DELTA_PUBLISH = "delta_publish"


def publish(
    topic: ReaderTopic,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="One message a line; - is standard input.")] = "-",
    command: Annotated[PublishCommand | None, typer.Option(help="Default: the topic's default_command.")] = None,
    key: Annotated[str | None, typer.Option(help="The SOW key of every line. Default: its key fields.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A header; may be repeated.")] = None,
    ack: Annotated[
        str, typer.Option(metavar="TYPE", help="Wait for acks: received, processed, completed or persisted.")
    ] = "none",
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="S", help="Longest wait for acks after the last line.  \\[default: a minute without any]"
        ),
    ] = None,
    expect_version: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Apply each line only to a record of version N, 0: to no record. Waits for acks."
        ),
    ] = None,
    config: ConfigFile = None,
    bootstrap: ReaderBootstrap = None,
) -> None:
    """Publish JSON lines. An invalid line is reported and skipped, the others are sent, and the exit code is 1."""
    from processor.client import Client  # noqa: PLC0415
    from processor.client.publish.command_sender import publishable  # noqa: PLC0415
    from processor.wire.ack import ack_types  # noqa: PLC0415

    client_name, arguments = _arguments(header or [], key)
    if expect_version is not None:
        arguments["expect_version"] = expect_version
        ack = "processed" if not ack_types(ack) else ack  # The outcome of each line is the point of it.
    wants_acks = bool(ack_types(ack))
    tree = reader_settings(config, bootstrap)
    topic_settings = publishable(tree, topic)
    method_name = command or PublishCommand(topic_settings.default_command)
    parse = _parser(tree, topic, key)
    first = arguments.pop("sequence", None)
    with Client(client_name, tree) as client, _lines(file) as lines, _progress(file) as show:
        method = client.publish if method_name is PublishCommand.PUBLISH else client.delta_publish
        tally = Tally(show, wants_acks=wants_acks)

        def send(number: int, line: bytes) -> Future[Ack] | None:
            # By line: a file that is published again has the same numbers, and no two lines have the same number.
            sequence = None if first is None else first + number - 1
            future: Future[Ack] | None = method(topic, parse(line), key, ack=ack, sequence=sequence, **arguments)
            return future

        try:
            _send_all(send, lines, tally, show)
            client.flush(timeout)
        finally:
            inform(tally.summary(topic))
    if tally.is_bad:
        raise typer.Exit(1)


def _send_all(send: Callable[[int, bytes], Future[Ack] | None], lines: BinaryIO, tally: Tally, show: Show) -> None:
    """Send every line."""
    from processor.errors import RecordRejected  # noqa: PLC0415

    size_bytes = 0
    for number, line in enumerate(lines, 1):
        size_bytes += len(line)
        if number == 1:
            line = _without_mark(line)  # noqa: PLW2901 - the same line
        if number % _PROGRESS_LINES == 0:
            show(size_bytes, tally.acknowledged)
            size_bytes = 0
        if not (message := line.strip()):
            continue
        try:
            future = send(number, message)
        except RecordRejected as error:
            tally.refuse(number, error)
        else:
            tally.sent += 1
            if future is not None:
                future.add_done_callback(partial(tally.settle, number))
    show(size_bytes, tally.acknowledged)


def _without_mark(line: bytes) -> bytes:
    """The first line without a byte order mark.

    Raises:
        typer.BadParameter: the mark is that of UTF-16.
    """
    if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise typer.BadParameter("it is in UTF-16; convert it: iconv -f UTF-16 -t UTF-8", param_hint="FILE")
    return line.removeprefix(BOM_UTF8)


def _parser(tree: Config, topic: str, key: str | None) -> Callable[[bytes], Value]:
    """A function from a line to the data to publish: JSON is sent unchanged; other message types encode its value."""
    from processor.codec import codec_of, load_codec  # noqa: PLC0415

    message_type = tree.topic(topic).message_type
    if message_type == "json":
        # Without a key the client reads the line, as the key is computed from it.
        return (lambda line: line) if key is None else partial(_checked, codec_of(tree, topic))
    decode = load_codec("json").decode
    if message_type in _OF_BYTES:
        return lambda line: _as_bytes(decode(line))
    return decode


def _checked(codec: Codec, line: bytes) -> bytes:
    """A line that is a message of the topic, unchanged.

    Raises:
        RecordRejected: it is none.
    """
    codec.decode(line)
    return line


def _as_bytes(value: Value) -> Value:
    """Decode the Base64 that `sow` and `subscribe` print for bytes."""
    if not isinstance(value, str):
        return value
    import base64  # noqa: PLC0415

    from processor.errors import RecordRejected  # noqa: PLC0415

    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise RecordRejected("undecodable", f"not Base64, which stands for bytes here: {error}") from None


def _arguments(options: list[str], key: str | None) -> tuple[str, dict[str, Any]]:
    """The client's name, and the publishing arguments that `--header K=V` options set; checks `--key`, too."""
    from processor.wire.publisher_headers import HEADER_ARGUMENTS, encoded  # noqa: PLC0415

    if key is not None:
        encoded(key, "--key")
    headers: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not K=V", param_hint="--header")
        encoded(value, f"--header {name}")
        headers[name] = value
    arguments: dict[str, Any] = {"headers": headers}
    if ("client" in headers) != ("sequence" in headers):
        # Numbers under one name for all files would make the next file a duplicate.
        raise typer.BadParameter("client and sequence go together: give both, or neither", param_hint="--header")
    client_name = headers.pop("client", "publish")
    if "expect_version" in headers:
        raise typer.BadParameter("give --expect-version instead of expect_version", param_hint="--header")
    kinds: dict[str, Callable[[str], Any]] = {name: argument.kind for name, argument in HEADER_ARGUMENTS.items()}
    for name, kind in (kinds | {"sequence": int}).items():
        if name in headers:
            try:
                arguments[name] = kind(headers.pop(name))
            except ValueError:
                raise typer.BadParameter(f"{name} is a number", param_hint="--header") from None
    if "ack_type" in headers:
        raise typer.BadParameter("give --ack instead of ack_type", param_hint="--header")
    return client_name, arguments


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
def _progress(file: str) -> Iterator[Show]:
    """A bar for a file, a spinner for a stream, once it takes longer than a second; nothing outside a terminal."""
    if not sys.stderr.isatty():
        yield lambda _bytes, _acknowledged: None
        return
    from pathlib import Path  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    words = TextColumn("{task.description}")
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), words)
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=None if file == "-" else Path(file).stat().st_size)
    shown_from_s = time.monotonic() + _BAR_AFTER_S

    def show(size_bytes: int, acknowledged: int) -> None:
        bar.update(task, advance=size_bytes, description=f"{acknowledged} acknowledged" if acknowledged else "")
        if time.monotonic() > shown_from_s:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()


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
