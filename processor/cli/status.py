"""`sowstream status`: shows the owner, position and hold of each partition, from Kafka alone."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import data, inform, table
from processor.cli.settings import Bootstrap, ConfigFile, settings
from processor.cli.worker import elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.kafka.admin.descriptions import Member
    from processor.shared_topics.control.status import PartitionStatus, PipelineStatus, Status

_COLUMNS = ("topic", "partition", "owner", "offset", "lag", "held", "since", "what to do")


def status(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Of the settings; none: all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Show each partition's worker, input offset and lag, and the reason if it is held; exit with 1 if one is.

    Also shown: failed pipelines with their message, and topics whose readers wait for an open transaction. Kafka
    is asked, no worker: held partitions are recorded in the topic _sowstream.control. Some offsets of a lag may be
    transaction markers, which are no records.
    """
    from processor.hosting.configured_pipelines import pipelines  # noqa: PLC0415
    from processor.shared_topics.control.status import Watched, fetch_status  # noqa: PLC0415

    tree = settings(config, bootstrap)
    watched = [
        Watched(pipeline.name, pipeline.source, pipeline.output("sow") if pipeline.has_state else None)
        for pipeline in pipelines(tree, topics or [])
    ]
    overview = fetch_status(tree.kafka, tree.application_id, watched, prefix=tree.topic_prefix)
    if as_json:
        data(json.dumps(_as_json(tree.application_id, overview)))
    else:
        _show(overview, elsewhere(tree, "status"))
    if not overview.is_well:
        raise typer.Exit(1)


def _show(overview: Status, commands: Mapping[str, str]) -> None:
    now_ms = int(time.time() * 1000)
    table(_COLUMNS, [row for pipeline in overview.pipelines for row in _rows(pipeline, now_ms)])
    for pipeline in overview.pipelines:
        for line in _lines(pipeline, now_ms, commands):
            inform(line)
    if not overview.has_control:
        inform("Whether anything is held is not known: there is no _sowstream.control (`sowstream topics apply`).")
    held = sum(part.is_held for pipeline in overview.pipelines for part in pipeline.partitions)
    failed = sum(bool(pipeline.failed) for pipeline in overview.pipelines)
    inform(f"{held} partitions are held, {failed} pipelines have failed." if held or failed else "Nothing is held.")


def _rows(pipeline: PipelineStatus, now_ms: int) -> Iterator[tuple[str, ...]]:
    for part in pipeline.partitions:
        held = part.held
        yield (
            pipeline.name,
            str(part.partition),
            _merger(pipeline, part),
            _number(part.offset),
            _number(part.lag),
            "" if held is None else held.reason,
            "" if held is None else f"{_age(now_ms - held.since_ms)} ago",
            part.to_do(pipeline.name),
        )


def _lines(pipeline: PipelineStatus, now_ms: int, commands: Mapping[str, str]) -> Iterator[str]:
    """The lines below the table: reasons that do not fit a row; `commands` has the one that runs each topic."""
    from processor.shared_topics.control.status import CONFIRMED_MS  # noqa: PLC0415

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


def _as_json(application_id: str, overview: Status) -> dict[str, object]:
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
                "partitions": [_part_as_json(pipeline.name, part) for part in pipeline.partitions],
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
    """A static member's name; another member's host and the beginning of its id."""
    if owner is None:
        return "no worker"
    if owner.instance:
        return owner.instance
    return f"{owner.host} {owner.client_id} {owner.member_id.removeprefix(f'{owner.client_id}-')[:8]}"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _age(ms: int) -> str:
    from processor.topics.problem import duration  # noqa: PLC0415

    return duration(max(0, ms))
