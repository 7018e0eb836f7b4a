"""`sowstream state`: looks into the state directory of a stopped worker."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from processor.cli.output import AsJson, data, inform, records_read, table
from processor.cli.shared_options import Bootstrap, ConfigFile, StateDir, settings, topic_names
from processor.errors import counted
from processor.wire.subscriber_headers import iso

if TYPE_CHECKING:
    from processor.operate.state_lookup import StatePlace, StateRecord, StateSummary

app = typer.Typer(help="Look into the local states of stopped workers, without changing them.", no_args_is_help=True)

Topics: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC", help="Only these topics.", autocompletion=topic_names)
]
Partition: TypeAlias = Annotated[int | None, typer.Option(min=0, metavar="P", help="Only this partition.")]

_COLUMNS = (
    "application", "topic", "partition", "format", "closed", "position", "applied", "records", "bytes", "largest",
    "expiring", "disk",
)  # fmt: skip


@app.command()
def inspect(
    topics: Topics = None,
    partition: Partition = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Print the record of this SOW key.")] = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print a line for each partition: the topic and offset of its state, and its numbers of records and bytes.

    Nothing on disk is changed. The states of a running worker are locked; they are named, and the exit code is 1. With
    --key, print the record of a key as the state has it; exit with 1 if there is none.
    """
    from processor.errors import StateLocked  # noqa: PLC0415
    from processor.operate.state_lookup import find_states, look_up, refuse_locked, summary  # noqa: PLC0415

    tree = settings(config, bootstrap, state_dir)
    locked: list[StatePlace] = []
    summaries: list[StateSummary] = []
    matches: list[StateRecord] = []
    with records_read("reading states") as on_read:
        for place in find_states(tree, topics or (), partition):
            try:
                if key is None:
                    summaries.append(summary(place, on_read=on_read))
                elif (record := look_up(tree, place, key)) is not None:
                    matches.append(record)
            except StateLocked:
                locked.append(place)
    for record in matches:
        _print_record(record)
    if key is None:
        _print_summaries(summaries, as_json=as_json)
    refuse_locked(locked)
    if key is not None and not matches:
        inform(f"no state in {tree.state_dir.absolute()} has a record {key!r}.")
        raise typer.Exit(1)


@app.command()
def verify(
    topics: Topics = None,
    partition: Partition = None,
    sow: Annotated[
        bool, typer.Option("--sow", help="Compare with the Kafka topics, too: it reads all of their records.")
    ] = False,
    state_dir: StateDir = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Check the states of stopped workers, and print their faults; exit with 1 if there is one.

    Every block is read with its checksum, every record is decoded, and compared with the expiry index and the marks.
    --sow compares each record with the Kafka topic that the state is a cache of. Nothing on disk is changed: a worker
    replaces a state that it finds damaged by a restore from the SOW topic, and so does deleting its directory.
    """
    from processor.errors import StateLocked  # noqa: PLC0415
    from processor.operate.state_lookup import find_states, refuse_locked  # noqa: PLC0415
    from processor.operate.state_verification import Verification  # noqa: PLC0415

    tree = settings(config, bootstrap, state_dir)
    locked: list[StatePlace] = []
    done: list[Verification] = []
    with records_read("reading states") as on_read:
        for place in find_states(tree, topics or (), partition):
            verification = Verification(tree, place, on_read=on_read)
            try:
                verification.run(with_topic=sow)
            except StateLocked:
                locked.append(place)
            else:
                done.append(verification)
    faults = [(one.place, fault) for one in done for fault in one.faults]
    names = ("application", "topic", "partition", "fault")
    rows = [(place.application, place.name, str(place.partition), fault) for place, fault in faults]
    table(names, rows, names=names if as_json else ())
    if faults:
        inform(
            f"{len(faults)} faults in {len({place for place, _ in faults})} of {len(done)} states. The SOW topic has "
            "everything: delete the directory of a faulty state, and the next worker restores it."
        )
    elif done:
        records = counted(sum(one.records for one in done), "record")
        inform(f"{counted(len(done), 'state')} with {records}: no fault{', also against Kafka' if sow else ''}.")
    refuse_locked(locked)
    if faults:
        raise typer.Exit(1)


def _print_summaries(summaries: list[StateSummary], *, as_json: bool) -> None:
    if as_json:
        for one in summaries:
            data(json.dumps(_as_object(one)))
        return
    table(_COLUMNS, [_as_row(one) for one in summaries])


def _as_object(one: StateSummary) -> dict[str, object]:
    """The summary of a state, with the time as ISO 8601 has it."""
    place, marks = one.place, one.marks
    return {
        "directory": str(place.directory),
        "application": place.application,
        "topic": place.name,
        "partition": place.partition,
        "kafka_topic": marks.topic,
        "topic_id": marks.topic_id,
        "format": marks.format,
        "readable": marks.is_readable,
        "closed": "clean" if marks.is_clean else "unclean",
        "position": marks.progress.position,
        "applied_at": _time(marks.progress.applied_at_ms),
        "records": one.records,
        "record_bytes": one.record_bytes,
        "largest_bytes": one.largest_bytes,
        "expiring": one.expiring,
        "disk_bytes": one.disk_bytes,
    }


def _as_row(one: StateSummary) -> list[str]:
    place, marks = one.place, one.marks
    return [
        place.application,
        place.name,
        str(place.partition),
        marks.format or "none",
        "clean" if marks.is_clean else "unclean",
        str(marks.progress.position),
        _time(marks.progress.applied_at_ms) or "",
        "" if one.records is None else str(one.records),
        str(one.record_bytes),
        str(one.largest_bytes),
        str(one.expiring),
        str(one.disk_bytes),
    ]


def _print_record(record: StateRecord) -> None:
    """Print a record as JSON; a value that cannot be shown as JSON as Base64."""
    from processor.codec.json_value import to_json_line  # noqa: PLC0415

    stored = record.stored
    value = {"base64": base64.b64encode(stored.value).decode()} if record.data is None else {"data": record.data}
    line = {
        "topic": record.place.name,
        "partition": record.place.partition,
        "version": stored.version,
        "expires_at": _time(stored.expires_at_ms),
        "source_offset": None if stored.source_offset < 0 else stored.source_offset,
        **value,
    }
    data(to_json_line(line))


def _time(ms: int) -> str | None:
    return None if ms == 0 else iso(ms).replace("Z", "+00:00")
