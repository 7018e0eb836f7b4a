"""Functions of time: seconds since the epoch, in UTC, with their fraction."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

from processor.filter.arithmetic import operand
from processor.filter.function import Function
from processor.filter.limits import FORMAT_CHARACTERS_MAX
from processor.filter.record_metadata import RecordMetadata
from processor.filter.syntax_tree import Scalar
from processor.filter.value import text_of

_FRACTION: Final = re.compile(r"%%|%03f")


def unix_timestamp(metadata: RecordMetadata) -> float:
    """The time now."""
    return time.time() if metadata.now_ms is None else metadata.now_ms / 1000


def strftime(form: Scalar, seconds: Scalar) -> str | None:
    """A time as text, in the form that strftime has; %f are microseconds, %03f milliseconds. NULL if there is none."""
    number = operand(seconds)
    try:
        moment = datetime.fromtimestamp(float(number or 0), UTC)
        millis = f"{moment.microsecond // 1000:03d}"
        return moment.strftime(_FRACTION.sub(lambda found: found[0] if found[0] == "%%" else millis, text_of(form)))
    except (ValueError, OverflowError, OSError):
        return None


def strptime(text: Scalar, form: Scalar) -> float | None:
    """The time that a text is in such a form, in UTC unless it names a zone. NULL if it is none.

    Nor is it one in a form of more than `FORMAT_CHARACTERS_MAX`: a form may stand in a record, and Python makes a
    regular expression of each.
    """
    written = text_of(form)
    if len(written) > FORMAT_CHARACTERS_MAX:
        return None
    known = _FRACTION.sub(lambda found: found[0] if found[0] == "%%" else "%f", written)
    try:
        moment = datetime.strptime(text_of(text), known)  # noqa: DTZ007 - the next line sees to it
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, re.error):
        return None


FUNCTIONS: Final = (
    Function("UNIX_TIMESTAMP", unix_timestamp, 0, 0, "metadata", moves_by_itself=True),
    Function("STRFTIME", strftime, 2, 2),
    Function("STRPTIME", strptime, 2, 2),
)
