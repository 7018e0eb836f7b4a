"""`sowstream dlq`: shows rejected records, and sends them back once the cause is fixed."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias

import typer

from processor.cli.output import data, inform, records_read, table
from processor.cli.shared_options import Bootstrap, ConfigFile, settings
from processor.errors import counted, without_controls
from processor.wire.subscriber_headers import iso

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processor.operate.waiting_letters import LetterSelection, Survey, WaitingLetters
    from processor.record import Headers
    from processor.wire.dead_letter import DeadLetter


_ROWS_MAX = 200  # Limit of rows on a terminal without --count.

app = typer.Typer(help="Records that were rejected: look at them, and send them back.", no_args_is_help=True)

Topic: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A topic of the settings; its dead letters are in TOPIC.dlq.")
]
Reason: TypeAlias = Annotated[
    str | None, typer.Option(metavar="R", help="Only those rejected for this, such as undecodable.")
]


@app.command(name="list")
def list_letters(
    topic: Topic,
    reason: Reason = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those sent back before, as long as Kafka keeps them.")
    ] = False,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after N.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Do not cut long messages.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print the waiting dead letters, one per line, and end at the last one; on a terminal, print a table."""
    from processor.operate.waiting_letters import LetterSelection, WaitingLetters  # noqa: PLC0415

    selection = LetterSelection(_known(reason))
    drawn: list[DeadLetter] | None = [] if sys.stdout.isatty() and not whole else None
    counts: Counter[str] = Counter()
    with WaitingLetters(settings(config, bootstrap), topic) as waiting:
        for letter in _chosen(waiting, selection, everything=everything):
            counts[letter.reason or "unknown"] += 1
            if drawn is None:
                data(as_json(letter, whole=whole, waits=waiting.waits(letter) if everything else None))
            elif len(drawn) < (count or _ROWS_MAX):
                drawn.append(letter)
            if counts.total() == count:
                break
    whose = topic if selection.reason is None else f"{topic} with the reason {selection.reason}"
    _report(whose, counts, drawn, everything=everything, is_cut=counts.total() == count)
    _report_forgotten(topic, waiting)


@app.command()
def replay(
    topic: Topic,
    reason: Reason = None,
    partition: Annotated[int | None, typer.Option(min=0, metavar="P", help="With --offset: only this one.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, metavar="N", help="Its offset, as `list` shows it.")] = None,
    leave_older: Annotated[
        bool, typer.Option("--leave-older", help="Pass over those that may have been sent back long ago.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Send the waiting dead letters back to the input topic, each exactly once, even if repeated or interrupted.

    With --reason or --offset, others that come before a sent one are appended again. Of more than 10,000 in a
    partition, an interruption may leave an older update of a key behind a newer one.
    """
    from processor.operate.letter_replay import DeadLetterReplay, replayable  # noqa: PLC0415
    from processor.operate.waiting_letters import LetterSelection, WaitingLetters, survey  # noqa: PLC0415

    if (partition is None) is not (offset is None):
        raise typer.BadParameter("--partition and --offset name one dead letter together", param_hint="--offset")
    place = None if partition is None or offset is None else (partition, offset)
    selection, tree = LetterSelection(_known(reason), place), settings(config, bootstrap)
    if dry_run:
        source = replayable(tree, topic)
        with WaitingLetters(tree, topic) as waiting, records_read("looking") as seen:
            counts = survey(waiting.letters(), selection, seen)
        _refuse_forgotten(topic, waiting, leave_older=leave_older)
        _refuse_nothing(topic, selection, counts)
        inform(f"{counts.selected} of {counts.waiting.total()} waiting dead letters would be sent back to {source}.")
        return
    running = None
    try:
        with DeadLetterReplay(tree, topic) as running:
            with records_read("looking") as seen:
                counts = survey(running.waiting.letters(), selection, seen)
            _refuse_forgotten(topic, running.waiting, leave_older=leave_older)
            _refuse_nothing(topic, selection, counts)
            with records_read("sending", counts.selected + counts.others) as done:
                running.send(counts, selection, done)
    except KeyboardInterrupt:
        sent = 0 if running is None else running.sent
        inform(f"Interrupted: {counted(sent, 'dead letter')} of {topic} sent back, the rest waits on.")
        raise
    for why in running.unsent:
        inform(f"Not sent: {why}.")
    left = counts.waiting.total() - running.sent
    others = f", {counted(left, 'other')} {'waits' if left == 1 else 'wait'} on" if left else ""
    inform(f"{counted(running.sent, 'dead letter')} of {topic} sent back{others}.")
    if running.unsent:
        raise typer.Exit(1)


def _known(reason: str | None) -> str | None:
    """Check a reason: one of Sowstream's, or a plug-in's own.

    Raises:
        ConfigurationError: it is not a word, or looks like a misspelt reason of Sowstream.
    """
    from difflib import get_close_matches  # noqa: PLC0415
    from typing import get_args  # noqa: PLC0415

    from processor.errors import ConfigurationError, unknown_name  # noqa: PLC0415
    from processor.record import RejectReason, is_reject_reason  # noqa: PLC0415

    known_reasons = list(get_args(RejectReason))
    if reason is None or reason in known_reasons:
        return reason
    if get_close_matches(reason.lower(), known_reasons) or not is_reject_reason(reason):
        raise ConfigurationError(unknown_name("reason", reason, known_reasons))
    return reason


def _chosen(waiting: WaitingLetters, selection: LetterSelection, *, everything: bool) -> Iterator[DeadLetter]:
    """The dead letters to show, in order per partition."""
    for _, letters in waiting.everything() if everything else waiting.letters():
        yield from filter(selection.takes, letters)


def _report(
    topic: str, counts: Counter[str], drawn: list[DeadLetter] | None, *, everything: bool, is_cut: bool
) -> None:
    """Draw the table, and print a summary of the counts."""
    if drawn:
        table(COLUMNS, (as_row(letter) for letter in drawn))
    state = "are kept" if everything else "wait"
    if not counts:
        inform(f"No such dead letters of {topic} {state}." if everything else f"No dead letters of {topic} {state}.")
        return
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    if is_cut:
        inform(f"The first {counts.total()} dead letters of {topic}: {reasons}; there may be more.")
        return
    if counts.total() == 1:
        state = "is kept" if everything else "waits"
    inform(f"{counted(counts.total(), 'dead letter')} of {topic} {state}: {reasons}.")
    if drawn is not None and len(drawn) < counts.total():
        inform(f"The first {len(drawn)} are shown; --count shows more, and a pipe gets all.")


def _report_forgotten(topic: str, waiting: WaitingLetters) -> None:
    """Print the number of kept letters of which Kafka does not know any more whether they were sent back."""
    if waiting.forgotten:
        inform(_forgotten(topic, waiting))


def _refuse_forgotten(topic: str, waiting: WaitingLetters, *, leave_older: bool) -> None:
    """Reject a replay that passes over letters which may never have been sent back; with `leave_older` report them.

    Raises:
        Stop: there are such letters.
    """
    from processor.errors import Stop  # noqa: PLC0415

    if leave_older or not waiting.forgotten:
        return _report_forgotten(topic, waiting)
    partitions = ",".join(str(partition) for partition in sorted(waiting.forgotten))
    raise Stop(
        f"{_forgotten(topic, waiting)} A replay puts the position behind them for good, so nothing was sent. Give "
        "--leave-older to send the newer ones only. To have older ones wait, set the position first: "
        f"`kafka-consumer-groups --reset-offsets --group {waiting.group} --topic {waiting.topic}:{partitions} "
        "--to-earliest --execute`, or with `--to-datetime` and the time of the last replay"
    )


def _forgotten(topic: str, waiting: WaitingLetters) -> str:
    older = counted(waiting.forgotten.total(), "older dead letter")
    return (
        f"{older} of {topic} may have been sent back: Kafka has no position of the group {waiting.group} any more. "
        f"`sowstream dlq list {topic} --all` shows them."
    )


def _refuse_nothing(topic: str, selection: LetterSelection, counts: Survey) -> None:
    """Reject a place without a waiting dead letter; a topic without any is no error.

    Raises:
        Stop: there is none at the place.
    """
    from processor.errors import Stop  # noqa: PLC0415

    if selection.place is not None and not counts.selected:
        partition, offset = selection.place
        raise Stop(
            f"no such dead letter of {topic} waits at partition {partition} offset {offset}; "
            f"`sowstream dlq list {topic}` shows those that do. Each replay puts those it passes by at a new offset"
        )


VALUE_BYTES_MAX: Final = 2_000
"""Limit of the value that is shown; the rest is cut."""

_CELL_CHARACTERS_MAX: Final = 120

COLUMNS: Final = ("partition", "offset", "rejected, UTC", "key", "reason", "detail", "value")
"""The columns of `as_row`."""


def as_json(letter: DeadLetter, *, whole: bool = False, waits: bool | None = None) -> str:
    """One line of JSON: the place, time and reason of the rejection, and the message.

    The message is in `value` if it is JSON, unchanged except that line ends become spaces; in `text` if it is text; and
    otherwise in `base64`. A tombstone has none of them. A message that was cut is text or Base64, with `cut`.

    Args:
        letter: the dead letter.
        whole: do not cut a long message.
        waits: whether it waits to be sent back; None leaves this out.
    """
    record = letter.record
    fields: dict[str, Any] = {
        "partition": letter.partition,
        "offset": record.offset,
        "timestamp": iso(record.timestamp_ms),
        **_text_or_base64("key", "key_base64", record.key),
        "reason": letter.reason,
        "detail": letter.detail,
        "source": letter.source,
        "headers": _headers(letter.headers),
    }
    if waits is not None:
        fields["waits"] = waits
    if record.value is None:
        return _dumped(fields | {"tombstone": True})
    fields["bytes"] = len(record.value)
    if not letter.is_whole:
        fields |= {"dlq_bytes": letter.whole_bytes, "dlq_sha256": letter.sha256, "dlq_truncated": True}
        # The beginning of a message is not a message, even if it can be parsed.
        return _dumped(fields | (_all_of(record.value) if whole else _beginning(record.value)) | {"cut": True})
    if not whole and len(record.value) > VALUE_BYTES_MAX:
        return _dumped(fields | _beginning(record.value) | {"cut": True})
    text = _json_text(record.value)
    if text is None:
        return _dumped(fields | _all_of(record.value))
    # Unchanged, not parsed and encoded again: the reader looks for a problem in exactly these bytes.
    return f'{_dumped(fields)[:-1]},"value":{text}}}'


def as_row(letter: DeadLetter) -> tuple[str, ...]:
    """The cells of `COLUMNS`, cut to fit a terminal."""
    record = letter.record
    return (
        str(letter.partition),
        str(record.offset),
        iso(record.timestamp_ms)[:19].replace("T", " "),
        _cell(record.key),
        _cell((letter.reason or "").encode()),
        _cell((letter.detail or "").encode()),
        _cell(record.value),
    )


def _dumped(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text_or_base64(text: str, base64_name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes under one of two names: the first for text and None, the second for Base64 of the rest."""
    if data is None:
        return {text: None}
    try:
        return {text: data.decode()}
    except UnicodeDecodeError:
        return {base64_name: base64.b64encode(data).decode()}


def _beginning(value: bytes) -> dict[str, str]:
    """The beginning of a long message; a character divided by the cut is left out."""
    cut = value[:VALUE_BYTES_MAX]
    try:
        return {"text": cut.decode()}
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and error.end == len(cut):
            return {"text": cut[: error.start].decode()}
        return {"base64": base64.b64encode(cut).decode()}


def _all_of(value: bytes) -> dict[str, Any]:
    return _text_or_base64("text", "base64", value)


def _json_text(value: bytes) -> str | None:
    """A message that is JSON, on one line; None if it is not."""
    try:
        text = value.decode()
        json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None
    # JSON strings contain no line ends, so these are layout.
    return text.strip().replace("\r", " ").replace("\n", " ")


def _refused(name: str) -> NoReturn:
    """Reject NaN and Infinity, which Python's parser accepts and JSON does not."""
    raise ValueError(name)


def _headers(headers: Headers) -> dict[str, Any]:
    """Headers by name, as text; a repeated name has a list, in order."""
    fields: dict[str, Any] = {}
    for name, value in headers:
        text = None if value is None else value.decode(errors="backslashreplace")
        if name not in fields:
            fields[name] = [text]
        else:
            fields[name].append(text)
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in fields.items()}


def _cell(data: bytes | None) -> str:
    """The beginning of some bytes, on one line; control characters become question marks."""
    if data is None:
        return "none"
    text = data[: 4 * _CELL_CHARACTERS_MAX].decode(errors="backslashreplace")
    is_cut = len(text) > _CELL_CHARACTERS_MAX or len(data) > 4 * _CELL_CHARACTERS_MAX
    shown = without_controls(text[:_CELL_CHARACTERS_MAX]).replace("\n", "?")
    return f"{shown}…" if is_cut else shown
