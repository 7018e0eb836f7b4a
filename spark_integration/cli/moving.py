"""The surroundings of the commands that move or check a merge: settings, session, and an orderly end by a signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from spark_integration.cli.pipeline_file import pipeline_session, pipeline_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from processor.config import Config
    from spark_integration.pipeline.pipeline_settings import PipelineSettings

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
    session = pipeline_session(pipeline, f"sowstream-spark {name}")
    # After Spark's own handlers. A takeover that is interrupted while workers leave lets them go on.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield CommandContext(pipeline, session, pipeline.topics, options)
    finally:
        session.stop()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
