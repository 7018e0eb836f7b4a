"""Change events as Debezium and the JsonConverter write them: made here, or recorded from the real connector.

`debezium_recorded.jsonl` has what Debezium's connector wrote for PostgreSQL, byte for byte. The first line has the
versions, and texts that occur often. A section begins with a line that has the settings of the connector,
the number of records that follow, and the rows of the table afterwards, by SELECT.
"""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

_ROW = [
    {"type": "int32", "optional": False, "default": 0, "field": "id"},
    {"type": "string", "optional": True, "field": "name"},
    {"type": "string", "optional": True, "field": "notes"},
]
_POSTGRES = {
    "version": "3.2.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1700000000123, "snapshot": "false",
    "db": "shop", "sequence": '["24023119","24023128"]', "ts_us": 1700000000123456, "ts_ns": 1700000000123456000,
    "schema": "public", "table": "orders", "txId": 555, "lsn": 24023128, "xmin": None,
}  # fmt: skip
_MYSQL = {
    "version": "3.2.0.Final", "connector": "mysql", "name": "shop", "ts_ms": 1700000000000, "snapshot": "false",
    "db": "shop", "sequence": None, "ts_us": 1700000000000000, "ts_ns": 1700000000000000000, "table": "orders",
    "server_id": 223344, "gtid": None, "file": "mysql-bin.000003", "pos": 484, "row": 0, "thread": 7, "query": None,
}  # fmt: skip
SOURCES: dict[str, dict[str, Any]] = {"postgresql": _POSTGRES, "mysql": _MYSQL}


def envelope(op: str, before: Any, after: Any, connector: str = "postgresql", **more: Any) -> dict[str, Any]:
    """An event without a schema beside it, with members in the order of Debezium's own."""
    source = {**SOURCES[connector], "snapshot": "true" if op == "r" else "false"}
    rows = {"before": before, "after": after} if op not in {"t", "m"} else {}
    times = {"ts_ms": 1700000000200, "ts_us": 1700000000200345, "ts_ns": 1700000000200345678}
    return {**rows, "source": source, "transaction": None, "op": op, **times, **more}


def converted(payload: Any, connector: str = "postgresql") -> dict[str, Any]:
    """The same with its schema beside it: the JsonConverter's `schemas.enable: true`, its default."""
    value = {"type": "struct", "fields": _ROW, "optional": True, "name": "shop.public.orders.Value"}
    fields = [
        {**value, "field": "before"},
        {**value, "field": "after"},
        {"type": "struct", "fields": [], "optional": False, "name": f"io.debezium.connector.{connector}.Source",
         "field": "source"},
        {"type": "struct", "fields": [], "optional": True, "name": "event.block", "version": 1, "field": "transaction"},
        {"type": "string", "optional": False, "field": "op"},
        {"type": "int64", "optional": True, "field": "ts_ms"},
    ]  # fmt: skip
    schema = {
        "type": "struct",
        "fields": fields,
        "optional": False,
        "name": "shop.public.orders.Envelope",
        "version": 2,
    }
    return {"schema": schema, "payload": payload}


def key(number: int, *, with_schema: bool = False) -> bytes:
    """A Kafka key as the JsonConverter writes it for a table with one key column."""
    payload = {"id": number}
    schema = {"type": "struct", "fields": [_ROW[0]], "optional": False, "name": "shop.public.orders.Key"}
    return written({"schema": schema, "payload": payload} if with_schema else payload)


def written(value: Any) -> bytes:
    """JSON as Jackson writes it: compact."""
    return json.dumps(value, separators=(",", ":")).encode()


class Recording(NamedTuple):
    """The records of the connector under one configuration, while a table `orders` changed."""

    settings: dict[str, Any] | None
    """Those of the connector that the page has; None: the page has none of its own."""
    rows: list[dict[str, Any]]
    """The rows of the table afterwards, as the connector writes their values."""
    records: list[tuple[bytes | None, bytes | None, dict[str, str]]]
    """Key, value and headers of its records, in their order."""


def recorded() -> dict[str, Recording]:
    """The recordings by name."""
    lines = Path(__file__).with_name("debezium_recorded.jsonl").read_text(encoding="utf-8").splitlines()
    versions, *parsed = map(json.loads, lines)

    def whole(text: str) -> str:
        text = re.sub("«schema \\d»", lambda name: versions["texts"][name[0]], text)
        return re.sub(r"«(\d+) (.)»", lambda run: run[2] * int(run[1]), text)

    recordings: dict[str, Recording] = {}
    for line in parsed:
        if "section" in line:
            names = ("id", "name", "notes", "amount", "due", "placed")
            rows = [dict(zip(names, row, strict=True)) for row in line["table"]]
            for row in rows:
                row["notes"] = row["notes"] and whole(row["notes"])
                row["due"] = row["due"] and (date.fromisoformat(row["due"]) - date(1970, 1, 1)).days
            recording = recordings[line["section"]] = Recording(line.get("settings"), rows, [])
        else:
            key, value = (None if text is None else whole(text).encode() for text in (line["key"], line["value"]))
            recording.records.append((key, value, {name: whole(text) for name, text in line["headers"]}))
    return recordings
