"""The header `removed`: which paths are gone."""

from __future__ import annotations

import json
from typing import Final

from processor.api import Header, Name, RecordRejected
from processor.topics.family import REMOVED_BYTES_MAX as _REMOVED_BYTES_MAX

REMOVED_BYTES_MAX: Final = _REMOVED_BYTES_MAX
"""Longest header: with the record beside it, Kafka must still take it, or the worker would stop at it for ever."""


def removed_header(pointers: list[str]) -> Header:
    """The JSON array of the pointers.

    Raises:
        RecordRejected: `too_large`: it would be too long.
    """
    text = json.dumps(pointers).encode()
    if len(text) > REMOVED_BYTES_MAX:
        raise RecordRejected(
            "too_large",
            f"header {Name.REMOVED}: {len(text)} bytes; at most {REMOVED_BYTES_MAX}; "
            "sow_delete the record, then publish it",
        )
    return Name.REMOVED, text
