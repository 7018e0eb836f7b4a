"""`sowstream-spark handback`: moves the merge of a topic from Spark back to its workers."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from processor.cli.output import data, inform
from spark_integration.cli.moving import Timeout, place
from spark_integration.cli.pipeline_file import PipelineFile, TopicArgument

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
        from spark_integration.cutover.handback import handback as hand_back  # noqa: PLC0415 - slow

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
