"""`sowstream status` and `resume`: show the owner, position and hold of each partition, and resume held ones."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from processor.cli.output import data, inform, table
from processor.cli.shared_options import Bootstrap, ConfigFile, TopicArgument, settings
from processor.cli.worker import elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.config import Config
    from processor.hosting.pipeline import Pipeline
    from processor.installation.control_topic import ControlEntries
    from processor.installation.hold import Outcome
    from processor.installation.pipeline_status import PartitionStatus, PipelineStatus, Status
    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.groups import Member


_Records: TypeAlias = "dict[tuple[str, int], int]"
"""The records in the lag of a pipeline's partition."""

_COLUMNS = ("topic", "partition", "owner", "offset", "lag", "held", "since", "what to do")


def status(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Of the settings; none: all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Show each partition's worker, input offset and lag, and the reason if it is held; exit with 1 if one is.

    Also shown: failed pipelines with their message, and topics whose readers wait for an open transaction. Kafka
    is asked, no worker: held partitions are recorded in the topic _sowstream.control. A lag up to 10,000 offsets counts
    records, if this user may read the topic; in another one some offsets are transaction markers. On a terminal owners
    have their names without the UUID, and columns that are empty in all rows are left out; `sowstream -v status` shows
    the whole names.
    """
    from processor.installation.configured_pipelines import pipelines  # noqa: PLC0415
    from processor.installation.pipeline_status import Watched, fetch_status  # noqa: PLC0415

    tree = settings(config, bootstrap)
    watched = [
        Watched(pipeline.name, pipeline.source, pipeline.output("sow") if pipeline.has_state else None)
        for pipeline in pipelines(tree, topics or [])
    ]
    overview = fetch_status(tree.kafka, tree.application_id, watched, prefix=tree.topic_prefix)
    records = _records_of_lags(tree, overview, {one.name: one.source for one in watched})
    if as_json:
        data(json.dumps(_as_json(tree.application_id, overview, records)))
    else:
        _show(overview, records, elsewhere(tree, "status"))
    if not overview.is_well:
        raise typer.Exit(1)


def _records_of_lags(tree: Config, overview: Status, sources: Mapping[str, str]) -> _Records:
    """The number of records in each lag that is small enough to be read; the others are missing."""
    from processor.operate.record_offsets import record_offsets  # noqa: PLC0415

    lags = [
        (pipeline.name, (sources[pipeline.name], part.partition), part.offset, part.end)
        for pipeline in overview.pipelines
        for part in pipeline.partitions
        if part.offset is not None and part.end is not None and sources[pipeline.name] not in part.open_behind
    ]
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for _, place, begin, end in lags:
        ranges[place] = (min(begin, ranges.get(place, (begin, end))[0]), end)
    found = record_offsets(tree.kafka, f"{tree.group_prefix}.status", ranges)
    return {
        (name, place[1]): sum(begin <= offset < end for offset in found[place])
        for name, place, begin, end in lags
        if place in found
    }


def _show(overview: Status, records: _Records, commands: Mapping[str, str]) -> None:
    now_ms = int(time.time() * 1000)
    table(_COLUMNS, [row for pipeline in overview.pipelines for row in _rows(pipeline, records, now_ms)])
    for pipeline in overview.pipelines:
        for line in _lines(pipeline, now_ms, commands):
            inform(line)
    if not overview.has_control:
        inform("Whether anything is held is not known: there is no _sowstream.control (`sowstream topics apply`).")
    held = sum(part.is_held for pipeline in overview.pipelines for part in pipeline.partitions)
    failed = sum(bool(pipeline.failed) for pipeline in overview.pipelines)
    inform(f"{held} partitions are held, {failed} pipelines have failed." if held or failed else "Nothing is held.")


def _rows(pipeline: PipelineStatus, records: _Records, now_ms: int) -> Iterator[tuple[str, ...]]:
    for part in pipeline.partitions:
        held = part.held
        yield (
            pipeline.name,
            str(part.partition),
            _merger(pipeline, part),
            _number(part.offset),
            _number(records.get((pipeline.name, part.partition), part.lag)),
            "" if held is None else held.reason,
            "" if held is None else f"{_age(now_ms - held.since_ms)} ago",
            part.to_do(pipeline.name),
        )


def _lines(pipeline: PipelineStatus, now_ms: int, commands: Mapping[str, str]) -> Iterator[str]:
    """The lines below the table: reasons that do not fit a row; `commands` has the one that runs each topic."""
    from processor.installation.pipeline_status import CONFIRMED_MS  # noqa: PLC0415

    if not pipeline.partitions:
        yield f"{pipeline.name}: its input topic does not exist; `sowstream topics apply` creates it"
    elif pipeline.fence is not None:
        yield f"{pipeline.name}: {pipeline.fence.sentence(pipeline.name)}"
    elif all(part.owner is None for part in pipeline.partitions):
        moving = pipeline.state not in {"dead", "empty", "stable"}
        command = commands.get(pipeline.name) or commands.get(pipeline.name.partition(".")[0])
        start = f"; `{command}` starts one" if command else ""
        yield f"{pipeline.name}: " + ("its partitions are moving" if moving else f"no worker{start}")
    for name, failure in pipeline.failed.items():
        yield f"{pipeline.name}: failed in {name} (process {failure.pid}): {failure.message}"
    for part in pipeline.partitions:
        if part.held is not None:
            age_ms = now_ms - part.held.at_ms
            stale = f" (said {_age(age_ms)} ago: its worker may be gone)" if age_ms > CONFIRMED_MS else ""
            at = "" if part.held.offset < 0 else f" at offset {part.held.offset}"
            yield f"{pipeline.name} partition {part.partition} is held{at}: {part.held.message}{stale}"
        for topic, offsets in part.open_behind.items():
            yield f"{topic} partition {part.partition}: the last {offsets:,} offsets are behind an open transaction"


def _as_json(application_id: str, overview: Status, records: _Records) -> dict[str, object]:
    return {
        "application_id": application_id,
        "has_control_topic": overview.has_control,
        "is_well": overview.is_well,
        "pipelines": [
            {
                "name": pipeline.name,
                "group": pipeline.group,
                "group_state": pipeline.state,
                "fence": None if pipeline.fence is None else pipeline.fence.model_dump(),
                "failed": [{"process": name, **failure.model_dump()} for name, failure in pipeline.failed.items()],
                "partitions": [
                    {
                        **_part_as_json(pipeline.name, part),
                        "lag_records": records.get((pipeline.name, part.partition), 0 if part.lag == 0 else None),
                    }
                    for part in pipeline.partitions
                ],
            }
            for pipeline in overview.pipelines
        ],
    }


def _part_as_json(pipeline: str, part: PartitionStatus) -> dict[str, object]:
    held = None
    if part.held is not None:
        since = datetime.fromtimestamp(part.held.since_ms / 1000, UTC).isoformat()
        held = {**part.held.model_dump(), "since": since, "to_do": part.to_do(pipeline)}
    return {
        "partition": part.partition,
        "owner": None if part.owner is None else _owner_as_json(part.owner),
        "offset": part.offset,
        "end": part.end,
        "lag": part.lag,
        "open_transactions": dict(part.open_behind),
        "held": held,
    }


def _owner_as_json(owner: Member) -> dict[str, str | None]:
    """The owner's names and address; its partitions are those of the status that name it."""
    names = {"member_id": owner.member_id, "client_id": owner.client_id}
    return {**names, "host": owner.host, "instance": owner.instance}


def _merger(pipeline: PipelineStatus, part: PartitionStatus) -> str:
    """The owner of a partition; Spark, or a move to it or back, where none has it because of that."""
    if part.owner is None and pipeline.fence is not None:
        return pipeline.fence.label
    return _owner(part.owner)


def _owner(owner: Member | None) -> str:
    """A static member's name; another member's host and the beginning of its id, for people without the UUID."""
    if owner is None:
        return "no worker"
    if owner.instance:
        return owner.instance
    # The name that a worker gives itself: its host, the checksum of its directory, its number, and a UUID.
    name = re.fullmatch(r"(.+-[0-9a-f]{8}-\d+)-[0-9a-f]{32}", owner.client_id)
    if name is not None and sys.stdout.isatty() and not logging.getLogger("sowstream").isEnabledFor(logging.DEBUG):
        return name[1]
    return f"{owner.host} {owner.client_id} {owner.member_id.removeprefix(f'{owner.client_id}-')[:8]}"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _age(ms: int) -> str:
    from processor.topics.problem import duration  # noqa: PLC0415

    return duration(max(0, ms))


def resume(
    topic: TopicArgument,
    partition: Annotated[int | None, typer.Option(min=0, metavar="P", help="Only this one.  \\[default: all]")] = None,
    skip: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="OFFSET", help="Skip the input from where the partition stands up to this offset, included."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip indeed.")] = False,
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="Longest wait for the workers.")] = 15.0,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Let workers retry the held partitions of a topic now, and print the outcome; exit with 1 if one is held again.

    A partition that is held because too many records were rejected goes on rejecting them. With --skip the input up to
    an offset is not processed but goes to the dead letters with the reason `skipped`; `sowstream dlq replay` sends it
    back once the cause is fixed. `sowstream status` shows the held partitions with their reasons.
    """
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.installation.configured_pipelines import pipeline_of  # noqa: PLC0415
    from processor.installation.control_topic import ControlTopic  # noqa: PLC0415
    from processor.installation.hold import new_order, send_order  # noqa: PLC0415
    from processor.kafka.admin.admin import Admin  # noqa: PLC0415

    tree = settings(config, bootstrap)
    pipeline = pipeline_of(tree, topic)
    if skip is not None and partition is None:
        raise ConfigurationError("--skip needs --partition: offsets are those of one partition")
    admin = Admin(tree.kafka, tree.connect_timeout_s)
    control = ControlTopic(tree.kafka, admin, prefix=tree.topic_prefix)
    entries = control.read(tree.application_id)
    if entries is None:
        raise ConfigurationError(
            f"the topic {control.topic} does not exist, which carries orders to workers: run `sowstream topics apply`, "
            "and restart workers that are older than it"
        )
    if skip is not None and partition is not None:
        _check_skip(admin, pipeline, entries, partition, skip, is_sure=yes)
    elif not _is_anything_held(entries, topic, partition):
        inform(f"No worker says that {_named(topic, partition)} is held.")
        return
    outcomes = send_order(control, tree.application_id, topic, new_order(partition, skip), entries, timeout)
    _report(topic, outcomes, timeout)


def _is_anything_held(entries: ControlEntries, topic: str, partition: int | None) -> bool:
    held = entries.held.get(topic, {})
    return partition in held if partition is not None else bool(held or entries.failed.get(topic))


def _named(topic: str, partition: int | None) -> str:
    return f"a partition of {topic}" if partition is None else f"{topic} partition {partition}"


def _check_skip(
    admin: Admin, pipeline: Pipeline, entries: ControlEntries, partition: int, skip: int, *, is_sure: bool
) -> None:
    """Reject an invalid skip, and describe the effect of one that was not confirmed.

    Raises:
        ConfigurationError: it is invalid or not confirmed.
    """
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.installation.hold import check_skip  # noqa: PLC0415

    notice = entries.held.get(pipeline.name, {}).get(partition)
    end = 0 if notice is None else admin.end_offsets(pipeline.source, [partition])[partition]
    check_skip(pipeline.name, pipeline.source, partition, notice, skip, end)
    if is_sure or notice is None:
        return
    raise ConfigurationError(
        f"{pipeline.name} partition {partition} is held at offset {notice.offset} ({notice.reason}): {notice.message}\n"
        f"--skip {skip} would not process the {skip - notice.offset + 1:,} offsets from {notice.offset} to {skip} of "
        f"{pipeline.source}, and send their records to {pipeline.output('dlq')}; confirm it with --yes"
    )


def _report(topic: str, outcomes: list[Outcome], timeout_s: float) -> None:
    for outcome in outcomes:
        if outcome.goes_on:
            data(f"{topic} {outcome.what}: goes on")
        elif outcome.is_over:
            data(f"{topic} {outcome.what}: held again: {outcome.why}")
        else:
            last = f" (its last word: {outcome.why})" if outcome.why else ""
            data(
                f"{topic} {outcome.what}: no worker has obeyed within {timeout_s:g} s{last}; the order stands for ten "
                f"minutes. `sowstream status {topic}` shows whether one runs"
            )
    if not all(outcome.goes_on for outcome in outcomes):
        raise typer.Exit(1)
