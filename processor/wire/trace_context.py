"""The headers of a trace: W3C's `traceparent` and `tracestate`. They travel on from a publish to SOW and delta.

They are not among `headers.Name`: to Sowstream they are a publisher's own headers, and no worker changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.record import Headers

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

VALUE_BYTES_MAX: Final = 512
"""Longest value that is read; W3C's `tracestate` may have 512 characters, `traceparent` has 55."""


def has_trace(headers: Headers | None) -> bool:
    """Return whether a record has a header `traceparent`."""
    return any(name == TRACEPARENT for name, _ in headers or ())


def trace_of(headers: Headers | None) -> dict[str, str]:
    """Return the headers of the trace of a record, for a propagator; empty where there is none that can be read."""
    trace: dict[str, str] = {}
    for name, value in headers or ():
        if (
            name in (TRACEPARENT, TRACESTATE)
            and value is not None
            and len(value) <= VALUE_BYTES_MAX
            and value.isascii()
        ):
            trace[name] = value.decode()
    return trace if TRACEPARENT in trace else {}


def trace_headers(trace: Mapping[str, str]) -> Headers:
    """Return the headers of a propagator's trace."""
    return [(name, value.encode()) for name, value in trace.items() if name in (TRACEPARENT, TRACESTATE)]
