"""`sowstream-spark backfill`: makes the SOW topic what an archive says."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from processor.cli.output import data
from spark_integration.cli.moving import Timeout, place
from spark_integration.cli.pipeline_file import PipelineFile, TopicArgument


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
        from spark_integration.cutover.backfill import backfill as fill  # noqa: PLC0415 - slow

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
