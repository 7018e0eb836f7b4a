"""`sowstream status` and `resume`: show the owner, position and hold of each partition, and resume held ones."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import data, inform, table
from processor.cli.shared_options import Bootstrap, ConfigFile, TopicArgument, settings
from processor.cli.worker import elsewhere
from processor.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.hosting.pipeline import Pipeline
    from processor.installation.control_topic import ControlEntries
    from processor.installation.hold import Outcome
    from processor.installation.pipeline_status import PartitionStatus, PipelineStatus, StatusReport
    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.groups import Member


_COLUMNS = ("topic", "partition", "owner", "offset", "lag", "held", "since", "what to do")


def status(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Of the settings; none: all")] = None,
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
    from processor.installation.pipeline_status import status_report  # noqa: PLC0415

    tree = settings(config, bootstrap)
    report = status_report(tree, topics or [])
    if as_json:
        data(json.dumps(report.as_json()))
    else:
        _show(report, elsewhere(tree, "status"))
    if not report.status.is_well:
        raise typer.Exit(1)


def _show(report: StatusReport, commands: Mapping[str, str]) -> None:
    now_ms, overview = int(time.time() * 1000), report.status
    table(_COLUMNS, [row for pipeline in overview.pipelines for row in _rows(report, pipeline, now_ms)])
    for note in report.notes(commands):
        inform(note)
    held = sum(part.is_held for pipeline in overview.pipelines for part in pipeline.partitions)
    failed = sum(bool(pipeline.failed) for pipeline in overview.pipelines)
    inform(
        f"{counted(held, 'partition')} held, {counted(failed, 'pipeline')} failed."
        if held or failed
        else "Nothing is held."
    )


def _rows(report: StatusReport, pipeline: PipelineStatus, now_ms: int) -> Iterator[tuple[str, ...]]:
    for part in pipeline.partitions:
        held = part.held
        yield (
            pipeline.name,
            str(part.partition),
            _merger(pipeline, part),
            _number(part.offset),
            _number(report.lag(pipeline.name, part)),
            "" if held is None else held.reason,
            "" if held is None else f"{_age(now_ms - held.since_ms)} ago",
            part.to_do(pipeline.name),
        )


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
    order = new_order(partition, skip, entries.held.get(topic, {}))
    outcomes = send_order(control, tree.application_id, topic, order, entries, timeout)
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
