"""Formats a dead letter: a JSON line for programs, the cells of a table for people."""

from __future__ import annotations

import base64
import json
from typing import Any, Final, NoReturn

from processor.record import Headers
from processor.wire.dead_letter import DeadLetter
from processor.wire.subscriber_headers import iso

VALUE_BYTES_MAX: Final = 2_000
"""Limit of the value that is shown; the rest is cut."""

_CELL_CHARACTERS_MAX: Final = 120

COLUMNS: Final = ("partition", "offset", "rejected, UTC", "key", "reason", "detail", "value")
"""The columns of `as_row`."""


def as_json(letter: DeadLetter, *, whole: bool = False, waits: bool | None = None) -> str:
    """One line of JSON: the place, time and reason of the rejection, and the message.

    The message is in `value` if it is JSON, unchanged except that line ends become spaces; in `text` if it is text; and
    otherwise in `base64`. A tombstone has none of them. A message that was cut is text or Base64, with `cut`.

    Args:
        letter: the dead letter.
        whole: do not cut a long message.
        waits: whether it waits to be sent back; None leaves this out.
    """
    record = letter.record
    fields: dict[str, Any] = {
        "partition": letter.partition,
        "offset": record.offset,
        "timestamp": iso(record.timestamp_ms),
        **_text_or_base64("key", "key_base64", record.key),
        "reason": letter.reason,
        "detail": letter.detail,
        "source": letter.source,
        "headers": _headers(letter.headers),
    }
    if waits is not None:
        fields["waits"] = waits
    if record.value is None:
        return _dumped(fields | {"tombstone": True})
    fields["bytes"] = len(record.value)
    if not letter.is_whole:
        fields |= {"dlq_bytes": letter.whole_bytes, "dlq_sha256": letter.sha256, "dlq_truncated": True}
        # The beginning of a message is not a message, even if it can be parsed.
        return _dumped(fields | (_all_of(record.value) if whole else _beginning(record.value)) | {"cut": True})
    if not whole and len(record.value) > VALUE_BYTES_MAX:
        return _dumped(fields | _beginning(record.value) | {"cut": True})
    text = _json_text(record.value)
    if text is None:
        return _dumped(fields | _text_or_base64("text", "base64", record.value))
    # Unchanged, not parsed and encoded again: the reader looks for a problem in exactly these bytes.
    return f'{_dumped(fields)[:-1]},"value":{text}}}'


def as_row(letter: DeadLetter) -> tuple[str, ...]:
    """The cells of `COLUMNS`, cut to fit a terminal."""
    record = letter.record
    return (
        str(letter.partition),
        str(record.offset),
        iso(record.timestamp_ms)[:19].replace("T", " "),
        _cell(record.key),
        _cell((letter.reason or "").encode()),
        _cell((letter.detail or "").encode()),
        _cell(record.value),
    )


def _dumped(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text_or_base64(text: str, base64_name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes under one of two names: the first for text and None, the second for Base64 of the rest."""
    if data is None:
        return {text: None}
    try:
        return {text: data.decode()}
    except UnicodeDecodeError:
        return {base64_name: base64.b64encode(data).decode()}


def _beginning(value: bytes) -> dict[str, str]:
    """The beginning of a long message; a character divided by the cut is left out."""
    cut = value[:VALUE_BYTES_MAX]
    try:
        return {"text": cut.decode()}
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and error.end == len(cut):
            return {"text": cut[: error.start].decode()}
        return {"base64": base64.b64encode(cut).decode()}


def _all_of(value: bytes) -> dict[str, Any]:
    return _text_or_base64("text", "base64", value)


def _json_text(value: bytes) -> str | None:
    """A message that is JSON, on one line; None if it is not."""
    try:
        text = value.decode()
        json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None
    # JSON strings contain no line ends, so these are layout.
    return text.strip().replace("\r", " ").replace("\n", " ")


def _refused(name: str) -> NoReturn:
    """Reject NaN and Infinity, which Python's parser accepts and JSON does not."""
    raise ValueError(name)


def _headers(headers: Headers) -> dict[str, Any]:
    """Headers by name, as text; a repeated name has a list, in order."""
    fields: dict[str, Any] = {}
    for name, value in headers:
        text = None if value is None else value.decode(errors="backslashreplace")
        if name not in fields:
            fields[name] = [text]
        else:
            fields[name].append(text)
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in fields.items()}


def _cell(data: bytes | None) -> str:
    """The beginning of some bytes; control characters of a terminal become question marks."""
    if data is None:
        return "none"
    text = data[: 4 * _CELL_CHARACTERS_MAX].decode(errors="backslashreplace")
    is_cut = len(text) > _CELL_CHARACTERS_MAX or len(data) > 4 * _CELL_CHARACTERS_MAX
    shown = "".join(character if character.isprintable() else "?" for character in text[:_CELL_CHARACTERS_MAX])
    return f"{shown}…" if is_cut else shown
