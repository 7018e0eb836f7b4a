"""The options, the session and the orderly end that the commands share."""

from __future__ import annotations

import os
import signal
import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeAlias

import typer

from processor.cli.output import inform
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
_LOOK_S: Final = 0.1
"""Time between two looks whether a stop is requested while Spark starts."""
_INTERRUPTED: Final = 130


def pipeline_settings(path: Path | None) -> PipelineSettings:
    """Read the pipeline's file; imported late, as `--help` does not need it.

    Raises:
        ConfigurationError: the settings are invalid.
    """
    from spark_integration.pipeline.pipeline_settings import PipelineSettings  # noqa: PLC0415

    return PipelineSettings.load(path)


@contextmanager
def pipeline_session(
    pipeline: PipelineSettings, app_name: str, stop: threading.Event | None = None
) -> Iterator[SparkSession]:
    """Start Spark with the settings of the pipeline; it stops with the block.

    The master is the one that `spark-submit` or the settings name. The handlers of signals stay those of the caller.

    Args:
        pipeline: the settings.
        app_name: shown in Spark's logs and pages.
        stop: set by a signal, which ends the start; None: Ctrl-C raises its own error.

    Raises:
        KeyboardInterrupt: a stop was requested before Spark had started, and a line about it was printed.
        ConfigurationError: Spark cannot start here.
        Stop: it did not start, with the first causes that it wrote to its log; or its JVM has ended within the block.
    """
    import structlog  # noqa: PLC0415 - slow

    from spark_integration import spark_session  # noqa: PLC0415
    from spark_integration.cli.spark_log import log_file, output_to  # noqa: PLC0415
    from spark_integration.foundation.pyspark_private import (  # noqa: PLC0415
        has_jvm_ended,
        is_remote,
        make_active,
        running_jvm,
    )

    starts_jvm = running_jvm() is None and "PYSPARK_GATEWAY_PORT" not in os.environ
    file = log_file(pipeline) if starts_jvm else None
    if file is not None:
        structlog.stdlib.get_logger("sowstream.spark").info("Spark starts", log=str(file))
    # Its progress bars would overwrite the lines of the jobs.
    conf = {"spark.ui.showConsoleProgress": "false"} | dict(pipeline.spark)
    try:
        with output_to(file):
            session = _in_thread(lambda: spark_session(app_name, **conf), stop)
    except KeyboardInterrupt:
        inform("Interrupted before Spark had started: nothing has run.")
        raise
    make_active(session)
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


def _in_thread(start: Callable[[], SparkSession], stop: threading.Event | None) -> SparkSession:
    """Start Spark in another thread, so that a stop acts at once.

    In the main thread PySpark takes the handler of Ctrl-C, and its own one calls Java in the midst of another call of
    Java: two traces, and no end. A start that is left alone ends with this process, by the closed input of its JVM.

    Raises:
        KeyboardInterrupt: the event was set.
    """
    started: Future[SparkSession] = Future()

    def run() -> None:
        try:
            started.set_result(start())
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            started.set_exception(error)

    threading.Thread(target=run, name="spark-start", daemon=True).start()
    while not started.done():
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        wait([started], _LOOK_S)
    return started.result()


def stop_event() -> threading.Event:
    """An event that SIGTERM and Ctrl-C set from now on."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # On a thread of its own: a signal may arrive while this one has the lock of the event, as in `wait`.
        signal.signal(number, lambda *_: start_new_thread(stop.set, ()))
    return stop


def refuse_interrupted(*, once: bool, is_complete: bool) -> None:
    """End with another exit code than 0 if a signal has ended a run before it had processed its input.

    Without `once`, a run has no other end than a signal.

    Raises:
        Exit: with the code of an interrupted command.
    """
    if once and not is_complete:
        inform("Interrupted: some of the input is not processed. The next run goes on there.")
        raise typer.Exit(_INTERRUPTED)


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
        # A takeover that is interrupted while workers leave lets them go on.
        signal.signal(signal.SIGTERM, _interrupt)
        yield CommandContext(pipeline, session, pipeline.topics, options)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
