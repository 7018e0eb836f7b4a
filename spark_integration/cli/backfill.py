"""`sowstream-spark backfill` and `reconcile`: make the SOW topic what an archive says, and compare it with replays."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from processor.cli.output import data
from spark_integration.cli.pipeline_file import PipelineFile, Timeout, TopicArgument, place

if TYPE_CHECKING:
    from spark_integration.pipeline.pipeline_settings import PipelineSettings


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
    ] = Keyless.SKIP,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Also where the first records are in no archive: delete theirs.")
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
