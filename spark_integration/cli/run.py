"""`sowstream-spark run`: runs jobs of the pipeline."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_integration.cli.pipeline_file import (
    Once,
    PipelineFile,
    pipeline_session,
    pipeline_settings,
    stop_event,
    stop_on_signals,
)


def run(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Jobs of the file; none: all.")] = None,
    config: PipelineFile = None,
    once: Once = False,
) -> None:
    """Run jobs, all in one Spark session, until SIGTERM or Ctrl-C; the running micro-batches end first.

    A job that is started again goes on where it ended. If one fails, the others drain, and the exit code is 1.
    """
    stop = stop_event()
    pipeline = pipeline_settings(config)
    chosen = pipeline.chosen(jobs)
    from spark_integration.cli.live_jobs import live_jobs  # noqa: PLC0415 - slow
    from spark_integration.cli.metrics_server import metrics_server  # noqa: PLC0415
    from spark_integration.pipeline.runner import run_jobs  # noqa: PLC0415

    session = pipeline_session(pipeline, "sowstream-spark run")
    try:
        stop_on_signals(stop)
        with metrics_server(pipeline) as monitor, live_jobs(monitor) as watch:
            run_jobs(pipeline, chosen, session, once=once, stop=stop, monitor=monitor, watch=watch)
    finally:
        session.stop()
