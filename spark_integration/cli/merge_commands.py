"""Commands about the merge of one topic: on Spark, there and back; of an archive, and compared with replays."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from processor.cli.output import data, inform
from spark_integration.cli.pipeline_file import (
    Once,
    PipelineFile,
    Timeout,
    TopicArgument,
    pipeline_session,
    pipeline_settings,
    place,
    refuse_interrupted,
    stop_event,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_integration.pipeline.pipeline_settings import PipelineJob, PipelineSettings


def merge(topic: TopicArgument, config: PipelineFile = None, once: Once = False) -> None:
    """Merge the records published to a topic, until SIGTERM or Ctrl-C, or until `handback`.

    After `takeover` it goes on in the checkpoint of that. Without one, the workers must be stopped, and the checkpoint
    is `merge-TOPIC` in the directory of the checkpoints.
    """
    stop = stop_event()
    pipeline = pipeline_settings(config)
    from spark_integration.cli.live_jobs import live_jobs, metrics_server  # noqa: PLC0415 - slow
    from spark_integration.merge.moves.move import current_fence  # noqa: PLC0415
    from spark_integration.pipeline.runner import run_jobs  # noqa: PLC0415

    job = merge_job(topic)
    is_moved = current_fence(topic, pipeline.topics, pipeline.spark_kafka()).is_up
    with pipeline_session(pipeline, f"sowstream-spark merge {topic}", stop) as session:
        if is_moved:
            is_complete = run_moved_merge(pipeline, topic, session, stop, once=once)
        else:
            with metrics_server(pipeline, is_merge=True) as monitor, live_jobs(monitor) as watch:
                is_complete = run_jobs(pipeline, [job], session, once=once, stop=stop, monitor=monitor, watch=watch)
    refuse_interrupted(once=once, is_complete=is_complete)


def run_moved_merge(
    pipeline: PipelineSettings, topic: str, session: SparkSession, stop: Event, *, once: bool = False
) -> bool:
    """Merge a topic in the checkpoint of `takeover`, with metrics, until `handback` or `stop`; see `run_merge`."""
    from spark_integration.cli.live_jobs import metrics_server  # noqa: PLC0415 - slow
    from spark_integration.merge.moves.merge_query import merge_name  # noqa: PLC0415
    from spark_integration.merge.moves.run_merge import run_merge  # noqa: PLC0415

    with metrics_server(pipeline, is_merge=True) as monitor:
        monitor.watch(merge_name(topic), session)
        monitor.set_state(merge_name(topic), "running")
        return run_merge(session, topic, config=pipeline.topics, options=pipeline.spark_kafka(), stop=stop, once=once)


def merge_job(topic: str) -> PipelineJob:
    """The job that merges a topic, which stands in no file."""
    from spark_integration.merge.moves.merge_query import merge_name  # noqa: PLC0415
    from spark_integration.pipeline.jobs.merge import Merge, MergeSettings  # noqa: PLC0415
    from spark_integration.pipeline.pipeline_settings import PipelineJob  # noqa: PLC0415

    return PipelineJob(merge_name(topic), Merge, MergeSettings(job="merge", topic=topic))


def takeover(
    topic: TopicArgument,
    merge: Annotated[bool, typer.Option("--merge", help="Go on as `sowstream-spark merge TOPIC`.")] = False,
    timeout: Timeout = 180.0,
    config: PipelineFile = None,
) -> None:
    """Move the merge of a topic from its workers to Spark; after a death at any step, run it again.

    The workers commit, leave and wait, without being stopped; if they have not left in time, they go on, and nothing
    has changed. After this command `sowstream-spark merge` merges the topic, and `sowstream-spark handback` moves the
    merge back. Two moves of a topic at a time are refused.
    """
    with place(config, f"takeover {topic}") as here:
        from spark_integration.merge.moves.takeover import takeover as take_over  # noqa: PLC0415 - slow

        fence = take_over(
            here.session,
            topic,
            config=here.config,
            checkpoints=here.pipeline.checkpoints,
            options=here.options,
            timeout_s=timeout,
            on_step=lambda step: inform(f"{topic}: {step}"),
        )
        data(f"{topic}: Spark merges it from {sum(fence.offsets.values()):,} offsets on, with {fence.checkpoint}")
        if not merge:
            inform(f"Nothing merges it until `sowstream-spark merge {topic}` runs.")
            return
        run_moved_merge(here.pipeline, topic, here.session, stop_event())


LostCheckpoint: TypeAlias = Annotated[
    bool, typer.Option("--lost-checkpoint", help="Give up a checkpoint that is gone for good; `offsets adopt` follows.")
]


def handback(
    topic: TopicArgument,
    timeout: Timeout = 180.0,
    lost_checkpoint: LostCheckpoint = False,
    config: PipelineFile = None,
) -> None:
    """Move the merge of a topic from Spark back to its workers; after a death at any step, run it again.

    `sowstream-spark merge` stops its query, without being stopped; the rest of its last micro-batch is written, and the
    workers go on behind it. A takeover that has not ended is given up.
    """
    with place(config, f"handback {topic}") as here:
        from spark_integration.merge.moves.handback import handback as hand_back  # noqa: PLC0415 - slow

        fence = hand_back(
            here.session,
            topic,
            config=here.config,
            options=here.options,
            timeout_s=timeout,
            lost_checkpoint=lost_checkpoint,
            on_step=lambda step: inform(f"{topic}: {step}"),
        )
        if lost_checkpoint:
            inform(
                f"{topic}: its workers hold their partitions until `sowstream offsets adopt {topic} --from "
                "sow|earliest|latest --yes`; `sow` needs headers `source`"
            )
            return
        data(f"{topic}: its workers merge it from {sum(fence.offsets.values()):,} offsets on")


class Keyless(StrEnum):
    """The values of `--keyless`."""

    ERROR = "error"
    SKIP = "skip"
    MERGE = "merge"


def backfill(
    topic: TopicArgument,
    archive: Annotated[str, typer.Option("--from", metavar="PATH", help="The archive of the publish topic.")],
    data_format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="The archive's format.")] = "parquet",
    as_of: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S.%f%z"],
            metavar="T",
            help="The state of this time, ISO 8601 with zone; later changes are undone, and not merged again.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the changes only; the workers go on.")] = False,
    keyless: Annotated[
        Keyless, typer.Option(help="Records that workers forward: skip them where workers have read the history.")
    ] = Keyless.ERROR,
    allow_partial: Annotated[
        bool,
        typer.Option(
            "--allow-partial",
            help="Also where no archive has the first records: delete theirs; or the last ones of an empty partition.",
        ),
    ] = False,
    timeout: Timeout = 180.0,
    config: PipelineFile = None,
) -> None:
    """Make the SOW topic the merge of an archive and of the publish topic behind it, and print the changes.

    Records that differ get higher versions, surplus ones are deleted, and subscribers get a delta for each. The workers
    wait meanwhile, without being stopped. After a death, run it again.
    """
    with place(config, f"backfill {topic}") as here:
        from spark_integration.merge.moves.backfill import backfill as fill  # noqa: PLC0415 - slow

        report = fill(
            here.session,
            topic,
            config=here.config,
            archive=archive,
            data_format=data_format,
            options=here.options,
            as_of=as_of,
            dry_run=dry_run,
            keyless=keyless.value,
            allow_partial=allow_partial,
            timeout_s=timeout,
        )
        data(str(report))


class _Store(NamedTuple):
    """A place of files or a table."""

    path: str | None
    """The path; None: there is none."""
    data_format: str
    """Its format, as Spark's readers call it."""


def reconcile(
    topic: TopicArgument,
    archive: Annotated[
        str | None, typer.Option(metavar="PATH", help="The archive.  \\[default: of the pipeline's job]")
    ] = None,
    data_format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="The archive's format.")] = "parquet",
    table: Annotated[
        str | None, typer.Option(metavar="PATH", help="The table.  \\[default: of the pipeline's job]")
    ] = None,
    table_format: Annotated[str, typer.Option(metavar="FORMAT", help="The table's format.")] = "parquet",
    keyless: Annotated[
        Keyless, typer.Option(help="Records that workers forward: skip them where workers have read the history.")
    ] = Keyless.SKIP,
    config: PipelineFile = None,
) -> None:
    """Check that the SOW topic is the replay of the delta topic, of the archive, and the table; exit with 1 if not.

    The report has the number of keys and the first differences of each check. Archive and table are those of the
    pipeline's jobs `archive` and `table` for this topic; without one its check is left out. Workers may run.
    """
    with place(config, f"reconcile {topic}") as here:
        from spark_integration.merge.moves.reconcile import reconcile as compare  # noqa: PLC0415 - slow

        archives = _Store(archive, data_format) if archive else _of_job(here.pipeline, "archive", topic)
        tables = _Store(table, table_format) if table else _of_job(here.pipeline, "table", topic)
        report = compare(
            here.session,
            topic,
            config=here.config,
            options=here.options,
            archive=archives.path,
            data_format=archives.data_format,
            table=tables.path,
            table_format=tables.data_format,
            keyless=keyless.value,
        )
        data(str(report))
        if not report.is_equal:
            raise typer.Exit(1)


def _of_job(pipeline: PipelineSettings, kind: str, topic: str) -> _Store:
    """The place of the first job of a kind for a topic; a table with a row for each version is none."""
    for job in pipeline.jobs.values():
        settings: Any = job.settings
        topics = (*getattr(settings, "topics", ()), getattr(settings, "topic", None))
        if settings.job == kind and topic in topics and getattr(settings, "kind", "scd1") == "scd1":
            return _Store(settings.to.place, settings.to.format)
    return _Store(None, "parquet")
