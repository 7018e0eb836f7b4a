"""What a SOW record says of itself; a copy keeps and passes it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.api import Name, RecordRejected

if TYPE_CHECKING:
    from processor.api import Record

_VERSION: Final = Name.VERSION
_DIGITS_MAX: Final = 19
_NUMBER_END: Final = 2**63
_TEXT_BYTES_MAX: Final = 2**16 - 1


def check(record: Record) -> None:
    """Refuse what no worker wrote to a SOW topic.

    Raises:
        RecordRejected: `bad_header`.
    """
    headers = record[2]
    if headers and len(headers) == 1:  # What most of them say: their version, and no more.
        name, text = headers[0]
        if name == _VERSION and text and len(text) < _DIGITS_MAX and text.isdigit():
            return
    version(record)
    expires_at_ms(record)


def version(record: Record) -> int:
    """The version it carries.

    Raises:
        RecordRejected: it carries none.
    """
    text = dict(record.headers or ()).get(Name.VERSION)
    if text is None or not _is_number(text):
        raise RecordRejected("bad_header", f"a SOW record carries its version; this one says {text!r:.100}")
    return int(text)


def expires_at_ms(record: Record) -> int:
    """When it expires; 0 is never.

    Raises:
        RecordRejected: at no time.
    """
    text = dict(record.headers or ()).get(Name.EXPIRES_AT) or b"0"
    if not _is_number(text):
        raise RecordRejected("bad_header", f"header {Name.EXPIRES_AT} of a SOW record is {text!r:.100}, no time")
    return int(text)


def correlation_id(record: Record) -> bytes:
    """The one that it carries; one that no store holds is left out."""
    text = dict(record.headers or ()).get(Name.CORRELATION_ID) or b""
    return text if len(text) <= _TEXT_BYTES_MAX else b""


def _is_number(text: bytes) -> bool:
    """Whether it is one that a store holds: of 63 bits."""
    return text.isdigit() and len(text) <= _DIGITS_MAX and int(text) < _NUMBER_END
