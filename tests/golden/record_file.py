"""Files of golden records: one JSON object a line, text where the bytes are UTF-8, else Base64."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from processor.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records to a file."""
    lines = [json.dumps(_as_tree(record), ensure_ascii=False) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_records(path: Path) -> list[Record]:
    """Read the records of a file."""
    return [_from_tree(json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _as_tree(record: Record) -> dict[str, Any]:
    return {
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers or ()],
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }


def _from_tree(tree: dict[str, Any]) -> Record:
    headers = [(name, _bytes(value)) for name, value in tree["headers"]]
    return Record(_bytes(tree["key"]), _bytes(tree["value"]), headers or None, tree["offset"], tree["timestamp_ms"])


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: str | dict[str, str] | None) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])
