"""The part of a batch that is merged at once: records whose states fit into memory, and checks of the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Record, State, Stored

READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the stored records that are read at once."""
LOOK_BYTES: Final = 256 * 1024
"""After so many bytes of outputs a merge asks whether the batch should end."""
LOOK_RECORDS: Final = 16
"""After so many records a merge asks, too."""


def read_states(state: State, records: Sequence[Record]) -> tuple[Sequence[Record], dict[bytes, Stored | None]]:
    """Read the states that records meet: return the first records, as many as fit, and the states of their keys."""
    keys = [record[0] for record in records if record[0] is not None]
    states, count = state.get_some(keys, READ_BYTES_MAX)
    if count == len(keys):
        return records, states
    places = [place for place, record in enumerate(records) if record[0] is not None]
    return records[: places[count]], states
