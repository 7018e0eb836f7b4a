"""The record of the mark topic that has the input position of a partition; `runtime.recovery.input_position` uses it.

::

    key    POSITION_NAME (`store.marks`), the last value of which compaction keeps for ever
    value  {"application_id": "desk", "topic_id": "b5xA…", "offset": 4711, "note": "seen 4800"}
"""

from __future__ import annotations

import json
from typing import NamedTuple


class InputPosition(NamedTuple):
    """The input position of one partition."""

    application_id: str
    """The application whose workers made the outputs."""
    topic_id: str
    """Kafka's id of the input topic: offsets mean nothing in another one of its name."""
    offset: int
    """The next input offset to process."""
    note: str = ""
    """The offset metadata of the group at that offset, see `hosting.commit_metadata`."""

    @classmethod
    def read(cls, value: bytes | None) -> InputPosition | None:
        """Parse a record's value; None where there is none, or it is not a position."""
        try:
            members = json.loads(value or b"null")
            offset = int(members["offset"])
            return cls(str(members["application_id"]), str(members["topic_id"]), offset, str(members["note"]))
        except (ValueError, KeyError, TypeError):
            return None

    def __bytes__(self) -> bytes:
        """The record's value."""
        return json.dumps(self._asdict(), ensure_ascii=False, separators=(",", ":")).encode()
