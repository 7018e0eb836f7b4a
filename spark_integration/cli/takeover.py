"""`sowstream-spark takeover`: moves the merge of a topic from its workers to Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from processor.cli.output import data, inform
from spark_integration.cli.merge import run_moved_merge
from spark_integration.cli.moving import Timeout, place
from spark_integration.cli.pipeline_file import PipelineFile, TopicArgument, stop_event


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
        from spark_integration.cutover.takeover import takeover as take_over  # noqa: PLC0415 - slow

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
