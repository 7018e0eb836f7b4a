"""Makes the dead letter of a rejected record: the record with its reason, always small enough to be sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.hosting.output_limits import size_of
from processor.record import is_reject_reason
from processor.wire.dead_letter import cut_headers, reason_headers

if TYPE_CHECKING:
    from processor.record import Headers, Outgoing, Record

KEPT_BYTES_MAX: Final = 1024 * 1024
"""Most bytes that are kept of a value that does not fit."""

_KEY_BYTES_MAX: Final = 4096  # Of a key that does not fit.
_DETAIL_BYTES_MAX: Final = 4096


def dead_letter(record: Record, reason: str, detail: str, source: str, bytes_max: int) -> Outgoing:
    """Return the full record with the reason; where that is too large, its beginning, its size and its checksum.

    Args:
        record: the input record.
        reason: why it is rejected: one of `RejectReason`, or a plug-in's own word.
        detail: the same as a sentence.
        source: `topic/partition/offset` of it.
        bytes_max: the largest record that the dead-letter topic takes.

    Raises:
        ValueError: the reason is no such word.
    """
    if not is_reject_reason(reason):
        raise ValueError(
            f"{reason!r:.100} is no reject reason: it is a word of lower-case letters, digits and '_', as a label of "
            "metrics; the rest belongs into the detail"
        )
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


def _why(reason: str, detail: str, source: str, more: str = "") -> Headers:
    """Return the headers that every dead letter has."""
    text = _cut(detail, _DETAIL_BYTES_MAX - len(more))
    return reason_headers(reason, text + more.encode(), source)


def _cut(detail: str, bytes_max: int) -> bytes:
    """Shorten a sentence to the text of a header: a foreign exception may quote the full record."""
    text = detail.encode(errors="replace")
    return text if len(text) <= bytes_max else text[:bytes_max].decode(errors="ignore").encode()
