"""A command that moves a merge, or the merge itself, in its own process; it may die at a chosen point.

`cutting_over_job COMMAND TOPIC CONFIG CHECKPOINTS [POINT]`: the command is `takeover`, `handback` or `merge`. The point
is a step, or `before commit N` or `after commit N` of the fence's writer, or `in a micro-batch`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from processor.config import load
from processor.kafka.clients.transactional_producer import TransactionalProducer
from spark_integration import spark_session
from spark_integration.merge.moves import handback, merge_query, run_merge, takeover
from spark_integration.merge.moves.merge_query import Checkpoint

SESSION_TIMEOUT_S = 6.0


def die() -> None:
    """End the process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Have the process die at a point of the fence's writer, or in a micro-batch."""
    if point == "in a micro-batch":
        original = merge_query.MergeQuery.start

        def start(self, fence, *arguments, **keywords):
            checkpoint = Checkpoint(self.spark, fence.checkpoint)
            planned = checkpoint.planned
            running = original(self, fence, *arguments, **keywords)
            while checkpoint.planned == planned and not running.exception():
                pass
            die()

        merge_query.MergeQuery.start = start
        return
    when, _, number = point.split()
    name, left = ("begin_commit" if when == "before" else "finish_commit"), int(number)
    call = getattr(TransactionalProducer, name)

    def armed(self, *arguments, **keywords):
        nonlocal left
        left -= 1
        if left == 0 and when == "before":
            self._producer.flush(120)  # The records are in the open transaction.
            die()
        result = call(self, *arguments, **keywords)
        if left == 0:
            die()
        return result

    setattr(TransactionalProducer, name, armed)


def main(command: str, topic: str, config: str, checkpoints: str, point: str = "") -> None:
    """Run a command, with one core."""
    steps = {*takeover.STEPS, *handback.STEPS, "done"}
    if point and point not in steps:
        arm(point)

    def on_step(step: str) -> None:
        print(f"step {step}", flush=True)
        if step == point:
            die()

    spark = spark_session(
        command,
        **{
            "spark.master": "local[1]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    options = {"kafka.bootstrap.servers": load(Path(config)).kafka["bootstrap.servers"]}
    if command == "takeover":
        takeover.takeover(spark, topic, config=config, options=options, checkpoints=checkpoints, on_step=on_step)
    elif command == "handback":
        handback.handback(spark, topic, config=config, options=options, on_step=on_step)
    else:
        limited = options | {"maxOffsetsPerTrigger": "200"}
        run_merge.run_merge(
            spark, topic, config=config, options=limited, trigger="0 seconds", session_timeout_s=SESSION_TIMEOUT_S
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
