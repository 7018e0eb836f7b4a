"""What a SOW record says of itself; a copy keeps and passes it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

from processor.api import Name, RecordRejected
from processor.builtin.conflate.pending import VERSION_BYTES_MAX
from processor.record import OUR_HEADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Headers, Record

_VERSION: Final = Name.VERSION
_DIGITS_MAX: Final = 19
_LENGTHS_SAFE: Final = frozenset(range(1, VERSION_BYTES_MAX + 1))
"""So many digits are a number of 63 bits whatever they are."""
_NUMBER_END: Final = 2**63
_TEXT_BYTES_MAX: Final = 2**16 - 1


class Said(NamedTuple):
    """What the headers of an update say."""

    version: int
    """The underlying record's version."""
    expires_at_ms: int
    """When it expires, milliseconds since the epoch; 0 is never."""
    correlation_id: bytes
    """The publisher's; empty where there is none, and where it is longer than a store holds."""
    is_expiry: bool
    """Whether a record that is gone has expired."""
    others: Headers
    """Those that travel on as they are."""


def plain_versions(records: Sequence[Record]) -> list[bytes]:
    """The version of each that says its version and nothing else, as most do: `said` would have no more to tell.

    Empty for all others: those whose headers must be kept.
    """
    heads = cast("list[list[tuple[str, bytes]]]", [record[2] for record in records])  # Where one is not, it raises.
    try:
        texts = [text for ((name, text),) in heads if name == _VERSION]
        if len(texts) == len(records) and b"".join(texts).isdigit() and _LENGTHS_SAFE.issuperset(map(len, texts)):
            return texts
    except (TypeError, ValueError):
        pass  # One has no headers or several, or a version without a value.
    return [_plain_version(record[2]) for record in records]


def _plain_version(headers: Headers | None) -> bytes:
    if headers is None or len(headers) != 1:
        return b""
    name, text = headers[0]
    return text if name == _VERSION and text and text.isdigit() and len(text) <= VERSION_BYTES_MAX else b""


def said(headers: Headers | None) -> Said:
    """What an update says of itself.

    Raises:
        RecordRejected: `bad_header`: no worker wrote it to a SOW topic.
    """
    headers = headers or []
    found = dict(headers)
    version = found.get(_VERSION)
    if version is None or not _is_number(version):
        raise RecordRejected("bad_header", f"a SOW record carries its version; this one says {version!r:.100}")
    if len(headers) == 1:
        return Said(int(version), 0, b"", False, [])
    expires_at = found.get(Name.EXPIRES_AT) or b"0"
    if not _is_number(expires_at):
        raise RecordRejected("bad_header", f"header {Name.EXPIRES_AT} of a SOW record is {expires_at!r:.100}, no time")
    return Said(
        int(version),
        int(expires_at),
        correlation_id(headers),
        found.get(Name.KIND) == b"expire",
        [header for header in headers if header[0] not in OUR_HEADERS],
    )


def correlation_id(headers: Headers | None) -> bytes:
    """The one that it carries; one that no store holds is left out."""
    text = dict(headers or ()).get(Name.CORRELATION_ID) or b""
    return text if len(text) <= _TEXT_BYTES_MAX else b""


def _is_number(text: bytes) -> bool:
    """Whether it is one that a store holds: of 63 bits."""
    return text.isdigit() and len(text) <= _DIGITS_MAX and int(text) < _NUMBER_END
