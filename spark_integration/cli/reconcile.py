"""`sowstream-spark reconcile`: compares the SOW topic with replays of its deltas and its archive, and with a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from processor.cli.output import data
from spark_integration.cli.backfill import Keyless
from spark_integration.cli.moving import place
from spark_integration.cli.pipeline_file import PipelineFile, TopicArgument

if TYPE_CHECKING:
    from spark_integration.pipeline.pipeline_settings import PipelineSettings


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
        from spark_integration.reconciling.reconcile import reconcile as compare  # noqa: PLC0415 - slow

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
