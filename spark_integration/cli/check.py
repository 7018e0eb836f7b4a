"""`sowstream-spark check`: find all mistakes of a pipeline at once, before Spark is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import data, inform
from processor.errors import ConfigurationError, Stop
from spark_integration.cli.pipeline_file import PipelineFile, pipeline_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_integration.pipeline.pipeline_settings import PipelineJob, PipelineSettings


def check(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Jobs of the file; none: all.")] = None,
    config: PipelineFile = None,
    parse_sql: Annotated[
        bool, typer.Option("--sql/--no-sql", help="Let Spark's parser read the SQL, where nothing else is wrong.")
    ] = True,
) -> None:
    """Check settings, topics, paths, columns, versions and SQL, with the job and the line of each mistake.

    No session of Spark is started, and no job; `run` does the same before it starts, without the SQL. A line that
    begins with `note` is a fact that a job would wait for. The exit code is 1 if a job could not run, and 2 if the
    settings are wrong by themselves.
    """
    pipeline = pipeline_settings(config)
    chosen = pipeline.chosen(jobs)
    from spark_integration.pipeline.run_check import check_run  # noqa: PLC0415 - slow

    findings = check_run(pipeline, chosen)
    for finding in findings:
        data(f"note: {finding}" if finding.kind == "note" else str(finding))
    problems = sum(finding.kind != "note" for finding in findings)
    if not problems and parse_sql:
        wrong = _sql_problems(pipeline, chosen)
        for line in wrong:
            data(line)
        problems = len(wrong)
    if problems:
        inform(f"{problems} problem{'' if problems == 1 else 's'}.")
        raise typer.Exit(1)
    inform("Nothing stands in the way.")


def refuse_problems(pipeline: PipelineSettings, jobs: Sequence[PipelineJob]) -> None:
    """Check jobs before they run.

    Raises:
        ConfigurationError: a job could not run; with a line for each problem.
        Stop: Kafka does not answer, and nothing else is wrong.
    """
    from spark_integration.pipeline.run_check import check_run  # noqa: PLC0415 - slow

    findings = check_run(pipeline, jobs)
    problems = [finding for finding in findings if finding.kind != "note"]
    if problems:
        kind = Stop if all(finding.kind == "outage" for finding in problems) else ConfigurationError
        raise kind("\n  ".join(map(str, problems)))


def _sql_problems(pipeline: PipelineSettings, jobs: Sequence[PipelineJob]) -> list[str]:
    """The SQL that Spark cannot parse; its JVM is started for it, without a session."""
    texts = [
        (job.name, place, kind, text) for job in jobs for place, (kind, text) in job.kind.sql(job.settings).items()
    ]
    if not texts:
        return []
    from spark_integration.cli.spark_log import log_file, output_to  # noqa: PLC0415 - slow
    from spark_integration.foundation.pyspark_private import (  # noqa: PLC0415
        running_jvm,
        sql_problem,
        start_jvm,
    )

    with output_to(log_file(pipeline)):
        start_jvm({})
    jvm, problems = running_jvm(), []
    for name, place, kind, text in texts:
        problem = sql_problem(jvm, text, is_query=kind == "query")
        if problem is not None:
            problems.append(f"{pipeline.place(name, *place)}: {problem}")
    return problems
