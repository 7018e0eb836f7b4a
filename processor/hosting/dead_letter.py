"""Makes the dead letter of a rejected record: the record and the reason, always small enough to be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.hosting.output_limits import size_of
from processor.wire.dead_letter import cut_headers, reason_headers

if TYPE_CHECKING:
    from processor.record import Headers, Outgoing, Record, RejectReason

KEPT_BYTES_MAX: Final = 1024 * 1024
"""Of a value that does not fit, so much is kept."""

_KEY_BYTES_MAX: Final = 4096  # Of a key that does not fit.
_DETAIL_BYTES_MAX: Final = 4096


def dead_letter(record: Record, reason: RejectReason, detail: str, source: str, bytes_max: int) -> Outgoing:
    """The record whole with the reason; where that is too large, the beginning of it, and what tells the rest.

    Args:
        record: the input record.
        reason: why it is rejected.
        detail: the same as a sentence.
        source: `topic/partition/offset` of it.
        bytes_max: the largest record that the dead-letter topic takes.
    """
    headers = list(record.headers or ())
    whole: Outgoing = record.key, record.value, [*headers, *_why(reason, detail, source)]
    if size_of(whole) <= bytes_max:
        return whole
    value, key = record.value or b"", record.key
    cut = cut_headers(value)
    left_out = []
    if size_of((key, None, [*headers, *_why(reason, detail, source), *cut])) > bytes_max // 2:
        if headers:
            left_out.append(f"its {len(headers)} headers are left out")
        headers = []
        if key is not None and len(key) > _KEY_BYTES_MAX:
            left_out.append(f"its key of {len(key)} bytes is cut")
            key = key[:_KEY_BYTES_MAX]
    more = "".join(f"; {what}" for what in left_out)
    kept: Headers = [*headers, *_why(reason, detail, source, more), *cut]
    room = max(0, min(KEPT_BYTES_MAX, bytes_max - size_of((key, None, kept))))
    return key, None if record.value is None else value[:room], kept


def _why(reason: RejectReason, detail: str, source: str, more: str = "") -> Headers:
    """The headers that every dead letter has."""
    text = _cut(detail, _DETAIL_BYTES_MAX - len(more))
    return reason_headers(reason, text + more.encode(), source)


def _cut(detail: str, bytes_max: int) -> bytes:
    """A sentence of any length as the text of a header: a foreign exception may quote the whole record."""
    text = detail.encode(errors="replace")
    return text if len(text) <= bytes_max else text[:bytes_max].decode(errors="ignore").encode()
