"""The versions of SOW and delta records, and their evidence about transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from processor.wire import sow_headers
from processor.wire.delta_headers import read_delta_headers
from processor.wire.sow_headers import kind_of_update

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.kafka.message import Message
    from processor.record import Headers


def version_of(message: Message) -> int:
    """The version of a SOW or delta record; 0 for the record of a delete."""
    headers = cast("Headers", list(message.headers() or ()))
    if message.value() is None or kind_of_update(headers) in ("delete", "expire"):
        return 0
    return sow_headers.version_of(headers) or 0


def base_of(message: Message) -> int:
    """The version that a delta applies to; 0 is none."""
    headers = cast("Headers", list(message.headers() or ()))
    base = read_delta_headers(headers).base
    return -1 if base is None else base


def are_done_once(messages: Iterable[Message]) -> bool:
    """Return whether no update among the records of a partition was repeated.

    A worker whose transaction is rolled back merges the same input again. So if the first part of the records was
    rolled back, versions appear twice.
    """
    last: dict[bytes, int] = {}
    for message in messages:
        key, version = message.key() or b"", version_of(message)
        before = last.get(key)
        if before is not None and (version == before == 0 or 0 < version <= before):
            return False
        last[key] = version
    return True
