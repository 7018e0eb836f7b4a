"""The contract between a plug-in and the runtime that hosts it: everything that a plug-in author imports.

The words are Kafka Streams': a `Processor` is initialised with a `Context`, processes records, is punctuated by the
wall clock, forwards to named outputs and is closed. Two things differ. It receives its records in batches, so that the
hot path pays nothing per record; `RecordProcessor` takes them one at a time. And its state is the compacted output
itself: `put` writes the state of a key and its SOW record together, a Kafka transaction makes both durable with the
input position, and a restart restores the state from the SOW topic.

One instance serves one partition, on one thread: no locks are needed. After a failed transaction the instance is closed
and a new one begins at the last commit, so its memory must follow from its records, its state and its note.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from processor.api.context import Context, Marks, State
from processor.api.processor import Enrich, Incomplete, Input, Output, Preprocess, Preprocessed, Processor
from processor.codec.contract import Codec
from processor.errors import RecordRejected
from processor.record import (
    Change,
    Command,
    Header,
    Headers,
    Kind,
    Outgoing,
    Record,
    RejectReason,
    Stored,
    Value,
)
from processor.wire.headers import Name

if TYPE_CHECKING:
    from processor.api.record_processor import RecordProcessor, Settings

_HOMES = {"RecordProcessor": "record_processor", "Settings": "record_processor"}

__all__ = [
    "Change",
    "Codec",
    "Command",
    "Context",
    "Enrich",
    "Header",
    "Headers",
    "Incomplete",
    "Input",
    "Kind",
    "Marks",
    "Name",
    "Outgoing",
    "Output",
    "Preprocess",
    "Preprocessed",
    "Processor",
    "Record",
    "RecordProcessor",
    "RecordRejected",
    "RejectReason",
    "Settings",
    "State",
    "Stored",
    "Value",
]


def __getattr__(name: str) -> object:
    """Import a name at its first use: these need pydantic, and a process that only merges does not."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
