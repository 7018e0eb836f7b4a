"""The rejection of an update for an error that a message type or a function of a filter raises."""

from __future__ import annotations

from processor.errors import RecordRejected, SowstreamError


def rejection(error: Exception) -> RecordRejected:
    """Turn an error into the rejection of the update that it was raised on.

    The error must not go further: updates are read when their key is due, and an error in a timer call ends the worker
    and every successor of it.

    Raises:
        Exception: it is no fault of the update.
    """
    if isinstance(error, RecordRejected):
        return error
    if isinstance(error, SowstreamError | MemoryError):
        raise error
    return RecordRejected("plugin_failed", f"{type(error).__name__}: {error}")
