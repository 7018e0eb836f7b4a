r"""The keys that only Sowstream writes, and the mark that ends each partition of a topic that has moved.

::

    key      \0sowstream/moved/orders_12
    value    none
    headers  version 1, sowstream_moved_to orders_12

A command under a key that begins with `\0sowstream/` is refused by workers, clients and gateways. But a key alone is no
mark: a record may have got such a key from an earlier version, and a row of a view has the key that its fields make. A
mark is a tombstone with exactly these headers: `sowstream_moved_to` never travels on from a publisher, and the
tombstones of workers, which copies of a topic pass on, have a header `kind`. Earlier versions wrote the mark without
`sowstream_moved_to`.

Readers of ours stop at a mark with an error that names the topic. To others it is a delete of a key that never was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import RecordRejected
from processor.wire.headers import Name

if TYPE_CHECKING:
    from processor.record import Headers, Outgoing

RESERVED: Final = b"\0sowstream/"
"""The beginning of the keys that no publisher may write."""

MOVED_RETENTION_MS: Final = 100 * 365 * 86_400_000
"""`delete.retention.ms` of the SOW topic of a topic that has moved: a hundred years.

A longer time is not safe: Kafka adds it to the present time, and removes the marks at once where the sum is too large.
"""

_BEGINNING: Final = RESERVED + b"moved/"
_VERSION: Final = (Name.VERSION, b"1")


def refuse_reserved(key: bytes) -> None:
    """Refuse a command under a key that only Sowstream writes.

    Raises:
        RecordRejected: `missing_key`: it is such a key.
    """
    if key.startswith(RESERVED):
        raise RecordRejected("missing_key", f"the key {key!r:.100} begins with {RESERVED!r}, which is reserved")


def moved_record(name: str) -> Outgoing:
    """Return the mark of a topic whose place the topic of this name has taken."""
    return _BEGINNING + name.encode(), None, [_VERSION, (Name.MOVED_TO, name.encode())]


def moved_to(key: bytes | None, headers: Headers | None) -> str | None:
    """Return the topic that a tombstone names; None for one that is no mark.

    Args:
        key: the key of the tombstone, which is in a SOW or delta topic.
        headers: its headers.
    """
    if key is None or not key.startswith(_BEGINNING):
        return None
    name = key[len(_BEGINNING) :]
    if list(headers or ()) not in ([_VERSION, (Name.MOVED_TO, name)], [_VERSION]):
        return None
    return name.decode(errors="replace")
