"""The functions that change a message before it is merged: preprocessors and enrichers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from processor.record import Command, Value


class Preprocessed(NamedTuple):
    """A message from a preprocessor, with the command that the message itself asks for."""

    body: Value
    """The object that replaces the message."""
    command: Command
    """The command, in place of the header's or the topic's default. A `sow_delete` needs the key fields alone."""


class Incomplete(Preprocessed):
    """A message that does not have the values of some fields at the top: the record must have them already."""

    lacking: tuple[str, ...]
    """The names of the fields."""
    is_stored: bool
    """The treatment of the message where there is no record: True: one is stored without those fields, and counted as
    event `incomplete_row`; False: it is rejected as `schema_mismatch`."""

    @classmethod
    def of(cls, body: Value, command: Command, lacking: tuple[str, ...], *, is_stored: bool) -> Incomplete:
        """Create one."""
        message = cls(body, command)
        message.lacking, message.is_stored = lacking, is_stored
        return message


Preprocess: TypeAlias = Callable[[Value], "Value | Preprocessed"]
"""Changes a message before its key is made: takes the object, which it may change, and returns its replacement.

An entry point of the group `sowstream.preprocessors` takes its settings by keyword and returns such a function; each
partition has its own. Raising rejects the record: as `plugin_failed`, or with the reason of a RecordRejected. A record
without a Kafka key passes twice, on its own partition the second time, so the result must be the same for the same
message.

If the function has an attribute `needs`, it maps settings of the topic to the values without which the preprocessor
would give wrong records, such as `{"null_policy": "set"}`; a topic with other values is refused at the start.
"""

Enrich: TypeAlias = Callable[[Value, Value | None], Value]
"""Changes a message before it is merged: takes the object and a copy of the current record, None if there is none.

The message is the published one, a full record or a delta, and the returned object is merged in its place. An entry
point of the group `sowstream.enrichers` makes it, as for a `Preprocess`. It must leave key fields alone.
"""
