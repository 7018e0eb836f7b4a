"""`sowstream-spark run` and `status`: run jobs of the pipeline, and show them from their checkpoints and from Kafka."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Final

import typer

from processor.cli.output import data, inform, table
from processor.errors import counted
from spark_integration.cli.check import refuse_problems
from spark_integration.cli.pipeline_file import (
    Once,
    PipelineFile,
    pipeline_session,
    pipeline_settings,
    refuse_interrupted,
    stop_event,
)

if TYPE_CHECKING:
    from spark_integration.pipeline.job_status import JobStatus


def run(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Jobs of the file; none: all.")] = None,
    config: PipelineFile = None,
    once: Once = False,
) -> None:
    """Run jobs, all in one Spark session, until SIGTERM or Ctrl-C; the running micro-batches end first.

    What `check` finds is checked before. A job that is started again goes on where it ended. A job that fails is tried
    again, and the others go on; the exit code is 1 if one has failed at the end, and 130 if a signal ended `--once`.
    """
    stop = stop_event()
    pipeline = pipeline_settings(config)
    chosen = pipeline.chosen(jobs)
    refuse_problems(pipeline, chosen)
    from spark_integration.cli.live_jobs import live_jobs, metrics_server  # noqa: PLC0415 - slow
    from spark_integration.pipeline.runner import run_jobs  # noqa: PLC0415

    with (
        pipeline_session(pipeline, "sowstream-spark run", stop) as session,
        metrics_server(pipeline) as monitor,
        live_jobs(monitor) as watch,
    ):
        is_complete = run_jobs(pipeline, chosen, session, once=once, stop=stop, monitor=monitor, watch=watch)
    refuse_interrupted(once=once, is_complete=is_complete)


_COLUMNS: Final = (
    "job", "kind", "epoch", "batch", "ended", "seconds", "offset", "lag", "published", "written", "quarantined",
    "state",
)  # fmt: skip
_SHORT: Final = ("job", "state", "ended", "lag", "rows", "quarantined")
"""The columns on a terminal of less than `_WIDE` columns."""
_WIDE: Final = 132
_BAD: Final = ("failed", "retrying", "gone")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    config: PipelineFile = None,
) -> None:
    """Show each job's state, last micro-batch, offsets, lag and rows; exit with 1 if one has failed or died.

    The checkpoints and Kafka are asked, no job: it works whether jobs run or not. A lag counts offsets, and some may be
    transaction markers, which are no records.
    """
    pipeline = pipeline_settings(config)
    from processor.kafka.admin.admin import Admin  # noqa: PLC0415 - slow
    from spark_integration.foundation.options import client_properties  # noqa: PLC0415
    from spark_integration.foundation.small_files import small_files  # noqa: PLC0415
    from spark_integration.pipeline.job_status import pipeline_status  # noqa: PLC0415

    # Only for checkpoints that are not on a disk of this machine.
    is_local = small_files(pipeline.checkpoints, None) is not None
    with nullcontext() if is_local else pipeline_session(pipeline, "sowstream-spark status") as session:
        admin = Admin(client_properties(pipeline.topics.kafka, pipeline.spark_kafka()))
        jobs = pipeline_status(pipeline, lambda directory: small_files(directory, session), admin)
    if as_json:
        data(json.dumps({"jobs": [job.as_json() for job in jobs]}))
        return
    _show(jobs)
    for job in jobs:
        if job.why:
            inform(f"{job.name}: {job.state}: {job.why}")
        for name, count in sorted(job.totals.items()):
            if name.startswith("quarantined."):
                inform(f"{job.name}: {counted(count, 'row')} in the quarantine: {name.removeprefix('quarantined.')}")
    if any(job.state in _BAD for job in jobs):
        raise typer.Exit(1)


def _show(jobs: Sequence[JobStatus]) -> None:
    """Print a row for each job: all columns for programs and on wide terminals, the most needed ones in 80 columns."""
    rows = [_row(job) for job in jobs]
    if not sys.stdout.isatty():
        inform("\t".join(_COLUMNS))  # Standard output has data alone.
        table(_COLUMNS, rows)
        return
    from rich.console import Console  # noqa: PLC0415 - slow

    from spark_integration.cli.live_jobs import narrow_table  # noqa: PLC0415 - slow

    console = Console()
    if console.width >= _WIDE:
        console.print(narrow_table(_COLUMNS, rows, console.width))
        return
    short = [
        (job.name, job.state or "-", dict(zip(_COLUMNS, row, strict=True))["ended"], _number(job.lag), _sent(job),
         str(job.quarantined))
        for job, row in zip(jobs, rows, strict=True)
    ]  # fmt: skip
    console.print(narrow_table(_SHORT, short, console.width))


def _sent(job: JobStatus) -> str:
    """The rows that a job has published or written: each job does one of the two."""
    counts = [job.totals[name] for name in ("published", "written") if name in job.totals]
    return _number(sum(counts) if counts else None)


def _row(job: JobStatus) -> tuple[str, ...]:
    from processor.topics.problem import duration  # noqa: PLC0415

    ended = "-" if job.at is None else f"{duration(max(0, round((time.time() - job.at) * 1000)))} ago"
    offset = sum(end for ends in job.offsets.values() for end in ends.values())
    return (
        job.name,
        job.kind,
        _number(job.epoch),
        _number(job.committed),
        ended,
        "-" if job.took_s is None else f"{job.took_s:.1f}",
        _number(offset if job.offsets else None),
        _number(job.lag),
        *(_number(job.totals.get(name)) for name in ("published", "written")),
        str(job.quarantined),
        job.state or "-",
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
