"""Functions of time: seconds since the epoch, in UTC, with their fraction."""

from __future__ import annotations

import time
from typing import Final

from processor.filter.arithmetic import operand
from processor.filter.function import Function
from processor.filter.functions.time_format import read_seconds, write_time
from processor.filter.limits import FORMAT_CHARACTERS_MAX
from processor.filter.record_metadata import RecordMetadata
from processor.filter.syntax_tree import Scalar
from processor.filter.value import text_of


def unix_timestamp(metadata: RecordMetadata) -> float:
    """The time now."""
    return time.time() if metadata.now_ms is None else metadata.now_ms / 1000


def strftime(form: Scalar, seconds: Scalar) -> str | None:
    """A time as text, by the directives of C; %f are microseconds, %03f milliseconds. NULL if there is none."""
    written, number = text_of(form), operand(seconds)
    if number is None or len(written) > FORMAT_CHARACTERS_MAX:
        return None
    try:
        return write_time(float(number), written)
    except OverflowError:
        return None


def strptime(text: Scalar, form: Scalar) -> float | None:
    """The time that a text is in such a form, in UTC unless it names a zone. NULL if it is none."""
    written = text_of(form)
    return None if len(written) > FORMAT_CHARACTERS_MAX else read_seconds(text_of(text), written)


FUNCTIONS: Final = (
    Function("UNIX_TIMESTAMP", unix_timestamp, 0, 0, "metadata", moves_by_itself=True),
    Function("STRFTIME", strftime, 2, 2),
    Function("STRPTIME", strptime, 2, 2),
)
