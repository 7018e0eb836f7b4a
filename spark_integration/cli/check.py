"""`sowstream-spark check`: find all mistakes of a pipeline at once, before Spark is started."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import data, inform
from processor.errors import ConfigurationError, Stop, counted
from spark_integration.cli.pipeline_file import PipelineFile, pipeline_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_integration.pipeline.pipeline_settings import PipelineJob, PipelineSettings


def check(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Jobs of the file; none: all.")] = None,
    config: PipelineFile = None,
    parse_sql: Annotated[bool, typer.Option("--sql/--no-sql", help="Let Spark's parser read the SQL.")] = True,
) -> None:
    """Check settings, topics, paths, columns, versions and SQL, with the job and the line of each mistake.

    No session of Spark is started, and no job; `run` does the same before it starts, without the SQL. A line that
    begins with `note` is a fact that a job would wait for. The exit code is 1 if a job could not run, and 2 if the
    settings are wrong by themselves.
    """
    pipeline = pipeline_settings(config)
    chosen = pipeline.chosen(jobs)
    from spark_integration.pipeline.run_check import check_run  # noqa: PLC0415 - slow
    from spark_integration.pipeline.sql_check import sql_of, sql_problems, starting_jvm  # noqa: PLC0415 - slow

    texts = sql_of(chosen) if parse_sql else []
    # Its JVM starts while Kafka is asked.
    with starting_jvm(keeps_classes=True) if texts else nullcontext() as jvm:
        findings = check_run(pipeline, chosen)
        for finding in findings:
            data(f"note: {finding}" if finding.kind == "note" else str(finding))
        problems = sum(finding.kind != "note" for finding in findings)
        if jvm is not None:
            # It needs Java, whose absence is one of the problems.
            with suppress(Stop) if problems else nullcontext():
                for line in sql_problems(pipeline, texts, jvm()):
                    data(line)
                    problems += 1
    if problems:
        inform(f"{counted(problems, 'problem')}.")
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
