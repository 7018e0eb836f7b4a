"""`sowstream-spark merge`: the merge of one topic on Spark, in place of its workers."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

from spark_integration.cli.pipeline_file import (
    Once,
    PipelineFile,
    TopicArgument,
    pipeline_session,
    pipeline_settings,
    stop_event,
    stop_on_signals,
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
    from spark_integration.cli.live_jobs import live_jobs  # noqa: PLC0415 - slow
    from spark_integration.cli.metrics_server import metrics_server  # noqa: PLC0415
    from spark_integration.cutover.move import current_fence  # noqa: PLC0415
    from spark_integration.pipeline.runner import run_jobs  # noqa: PLC0415

    job = merge_job(topic)
    is_moved = current_fence(topic, pipeline.topics, pipeline.spark_kafka()).is_up
    session = pipeline_session(pipeline, f"sowstream-spark merge {topic}")
    try:
        stop_on_signals(stop)
        if is_moved:
            run_moved_merge(pipeline, topic, session, stop, once=once)
            return
        with metrics_server(pipeline, is_merge=True) as monitor, live_jobs(monitor) as watch:
            run_jobs(pipeline, [job], session, once=once, stop=stop, monitor=monitor, watch=watch)
    finally:
        session.stop()


def run_moved_merge(
    pipeline: PipelineSettings, topic: str, session: SparkSession, stop: Event, *, once: bool = False
) -> None:
    """Merge a topic in the checkpoint of `takeover`, with metrics, until `handback` or `stop`."""
    from spark_integration.cli.metrics_server import metrics_server  # noqa: PLC0415 - slow
    from spark_integration.cutover.query import merge_name  # noqa: PLC0415
    from spark_integration.cutover.run_merge import run_merge  # noqa: PLC0415

    with metrics_server(pipeline, is_merge=True) as monitor:
        monitor.watch(merge_name(topic), session)
        monitor.set_state(merge_name(topic), "running")
        run_merge(session, topic, config=pipeline.topics, options=pipeline.spark_kafka(), stop=stop, once=once)


def merge_job(topic: str) -> PipelineJob:
    """The job that merges a topic, which stands in no file."""
    from spark_integration.cutover.query import merge_name  # noqa: PLC0415
    from spark_integration.pipeline.jobs.merge import Merge, MergeSettings  # noqa: PLC0415
    from spark_integration.pipeline.pipeline_settings import PipelineJob  # noqa: PLC0415

    return PipelineJob(merge_name(topic), Merge, MergeSettings(job="merge", topic=topic))
