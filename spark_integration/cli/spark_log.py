"""Sends the output of Spark's JVM to a file, so that the terminal has the lines of the jobs alone.

The JVM inherits the output of this process, with all that Java, Ivy and Python's workers write there. So the file takes
its place while the JVM starts, and for as long as it lives. Under `spark-submit` the JVM is the parent, and
its output is the user's affair.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from processor.errors import ConfigurationError, SowstreamError, Stop
from spark_integration.pipeline.monitor import Draining

if TYPE_CHECKING:
    from spark_integration.pipeline.pipeline_settings import PipelineSettings

FILE: Final = "spark.log"
"""The default name, next to the pipeline's file."""
_BYTES_MAX: Final = 10_000_000
"""A longer file becomes `<name>.1` at the next start, in place of the one before."""
_CAUSES_MAX: Final = 3
_CAUSE: Final = re.compile(
    r"unresolved dependency|UNRESOLVED DEPENDENCIES|not found|^Caused by|^Exception in|^Error|could not|Unrecognized",
    re.IGNORECASE | re.MULTILINE,
)


def log_file(pipeline: PipelineSettings) -> Path | None:
    """The file for Spark's output; None: standard error.

    Raises:
        ConfigurationError: the file that the settings name cannot be written.
    """
    if pipeline.spark_log == "-":
        return None
    named = pipeline.spark_log
    file = Path(named) if named else pipeline.file.resolve().parent / FILE
    try:
        if file.is_file() and file.stat().st_size > _BYTES_MAX:
            file.replace(file.with_name(f"{file.name}.1"))
        with file.open("a", encoding="utf-8") as log:
            started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            log.write(f"=== {started}: process {os.getpid()}: {' '.join(sys.argv[1:])}\n")
    except OSError as error:
        if named:
            raise ConfigurationError(
                f"spark_log: {file} cannot be written: {error.strerror}; name another file, or - for standard error"
            ) from None
        return None  # A directory of settings alone, as in a container, whose log is standard error.
    return file


@contextmanager
def output_to(file: Path | None) -> Iterator[None]:
    """Let processes that are started in the block write their output to a file; this one keeps its own.

    Args:
        file: the file, which exists; None: nothing changes.

    Raises:
        Stop: Spark did not start; with the first causes that it wrote there.
    """
    if file is None:
        yield
        return
    size, own, own_output = file.stat().st_size, os.dup(2), os.dup(1)
    with file.open("ab") as log:
        _let_py4j_log_to(file)
        before, handlers = sys.stderr, _handlers()
        sys.stderr = os.fdopen(os.dup(own), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        for handler in handlers:
            handler.setStream(sys.stderr)
        os.dup2(log.fileno(), 2)
        os.dup2(log.fileno(), 1)  # Ivy's first line.
        try:
            yield
        except SowstreamError:
            raise
        except Exception as error:  # noqa: BLE001 - of Java, of py4j or of PySpark
            causes = _causes(file, size) or [str(error).partition("\n")[0]]
            raise Stop("\n  ".join([f"Spark did not start; its output is in {file}:", *causes])) from None
        finally:
            for copy, number in ((own, 2), (own_output, 1)):
                os.dup2(copy, number)
                os.close(copy)
            for handler in handlers:
                handler.setStream(before)
            sys.stderr.close()
            sys.stderr = before


def _handlers() -> list[logging.StreamHandler[TextIO]]:
    """The log's handlers that write to standard error."""
    return [each for each in logging.getLogger().handlers
            if isinstance(each, logging.StreamHandler) and each.stream is sys.stderr]  # fmt: skip


def _let_py4j_log_to(file: Path) -> None:
    """Send the traces of functions that Java calls, and of calls that Ctrl-C cuts off, to the file.

    A job's own line has the cause of the first ones.
    """
    py4j = logging.getLogger("py4j")
    if py4j.propagate:
        handler = logging.FileHandler(file, encoding="utf-8", delay=True)
        # A micro-batch that a stop keeps from beginning is no failure, and ends by an error all the same.
        handler.addFilter(lambda record: record.exc_info is None or not isinstance(record.exc_info[1], Draining))
        py4j.addHandler(handler)
        py4j.propagate = False

        def is_of_others(record: logging.LogRecord) -> bool:
            if Path(record.pathname).parent.name != "py4j":
                return True
            handler.handle(record)
            return False

        # It logs errors of a call to the root logger.
        logging.getLogger().addFilter(is_of_others)


def _causes(file: Path, size: int) -> list[str]:
    """The lines about causes that were added to a file, the first ones first."""
    with file.open("rb") as log:
        log.seek(size)
        lines = log.read().decode(errors="replace").splitlines()
    return list(dict.fromkeys(line.strip() for line in lines if _CAUSE.search(line)))[:_CAUSES_MAX]
