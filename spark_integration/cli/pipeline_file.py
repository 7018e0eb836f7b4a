"""The options, the session and the orderly end that the commands share."""

from __future__ import annotations

import os
import signal
import threading
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from processor.errors import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from processor.config import Config
    from spark_integration.pipeline.pipeline_settings import PipelineSettings


PipelineFile: TypeAlias = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The pipeline.  \\[default: ./pipeline.yaml]")
]
Once: TypeAlias = Annotated[bool, typer.Option("--once", help="Process the input that exists now, and end.")]
TopicArgument: TypeAlias = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic of the settings.")]


def pipeline_settings(path: Path | None) -> PipelineSettings:
    """Read the pipeline's file; imported late, as `--help` does not need it.

    Raises:
        ConfigurationError: the settings are invalid.
    """
    from spark_integration.pipeline.pipeline_settings import PipelineSettings  # noqa: PLC0415

    return PipelineSettings.load(path)


@contextmanager
def pipeline_session(pipeline: PipelineSettings, app_name: str) -> Iterator[SparkSession]:
    """Start Spark with the settings of the pipeline; it stops with the block.

    The master is the one that `spark-submit` or the settings name.

    Raises:
        ConfigurationError: Spark cannot start here.
        Stop: it did not start, with the first causes that it wrote to its log; or its JVM has ended within the block.
    """
    import structlog  # noqa: PLC0415 - slow

    from spark_integration import spark_session  # noqa: PLC0415
    from spark_integration.cli.spark_log import log_file, output_to  # noqa: PLC0415
    from spark_integration.foundation.pyspark_private import has_jvm_ended, is_remote, running_jvm  # noqa: PLC0415

    starts_jvm = running_jvm() is None and "PYSPARK_GATEWAY_PORT" not in os.environ
    file = log_file(pipeline) if starts_jvm else None
    if file is not None:
        structlog.stdlib.get_logger("sowstream.spark").info("Spark starts", log=str(file))
    # Its progress bars would overwrite the lines of the jobs.
    conf = {"spark.ui.showConsoleProgress": "false"} | dict(pipeline.spark)
    with output_to(file):
        session = spark_session(app_name, **conf)
    if not is_remote(session):
        session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    except BaseException as error:
        if has_jvm_ended(error):
            place = "" if file is None else f"; its output is in {file}"
            raise Stop(f"Spark's JVM has ended{place}. The next start goes on where this one ended") from None
        session.stop()
        raise
    session.stop()


def stop_event() -> threading.Event:
    """An event that SIGTERM and Ctrl-C set: to be called again once Spark runs, which has its own handler."""
    stop = threading.Event()
    stop_on_signals(stop)
    return stop


def stop_on_signals(stop: threading.Event) -> None:
    """Let SIGTERM and SIGINT set an event from now on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # On a thread of its own: a signal may arrive while this one has the lock of the event, as in `wait`.
        signal.signal(number, lambda *_: start_new_thread(stop.set, ()))


Timeout: TypeAlias = Annotated[
    float, typer.Option("--timeout", min=1, metavar="S", help="Longest wait for the others.")
]


class CommandContext(NamedTuple):
    """The surroundings of a command."""

    pipeline: PipelineSettings
    """The pipeline's file."""
    session: SparkSession
    """The session on the master that the user names."""
    config: Config
    """The settings of the topics."""
    options: dict[str, str]
    """The options of Spark's Kafka source and sink."""


@contextmanager
def place(file: Path | None, name: str) -> Iterator[CommandContext]:
    """Read the settings and start Spark, which stops with the block; SIGTERM ends the block as Ctrl-C does.

    Raises:
        ConfigurationError: the settings are invalid, or Spark cannot start here.
    """
    pipeline = pipeline_settings(file)
    options = pipeline.spark_kafka()
    with pipeline_session(pipeline, f"sowstream-spark {name}") as session:
        # After Spark's own handlers. A takeover that is interrupted while workers leave lets them go on.
        signal.signal(signal.SIGTERM, _interrupt)
        yield CommandContext(pipeline, session, pipeline.topics, options)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
