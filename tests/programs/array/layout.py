"""The records of a row: the places of its fields, their values, and the settings of its topic."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path as File
from typing import Any, Final

import bson
import msgpack

from tests.programs.array.features import FLAT, TEXTS
from tests.programs.array.pairs import Row
from tests.programs.oracle import exact_json
from tests.programs.oracle.formats import Avro, Bson, Format, Json, Msgpack
from tests.programs.oracle.keys import Key, partition_of
from tests.programs.oracle.rules import RULES, Group
from tests.programs.oracle.steps import Steps
from tests.programs.oracle.text_formats import Composite, Fix, Nvfix, Xml
from tests.programs.oracle.topic import Settings
from tests.programs.oracle.values import Path, pointer_of, with_value

Object = dict[str, Any]

TTL_S: Final = 5
"""The topic's time to live."""
MAX_BYTES: Final = 20_000
MAX_DEPTH: Final = 8
PARTITIONS: Final = 2

_TAGS: Final = {
    "id": "11", "book": "1", "qty": "38", "px": "44", "log": "448", "state": "39", "note": "58", "ts": "60",
    "seen": "14", "gone": "99",
}  # fmt: skip
"""The tag of each field name, for FIX."""
_PREFIXES: Final[dict[str, Path]] = {"xml": ("order",), "composite-local": ("0",)}
_KEYS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "field": (("id",),), "number": (("id",),), "keyless": (("id",),),
    "nested": (("k", "id"),), "deep": (("k", "j", "id"),),
    "several": (("id",), ("book",)), "spelled": (("id",), ("book",)),
    "explicit": (),
}  # fmt: skip
_START: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Layout:
    """The records of a row."""

    row: Row
    prefix: Path
    format: Format
    key: Key

    def path(self, *names: str) -> Path:
        """The path of a field, by the names that JSON has for it."""
        if self.row["type"] == "fix":
            names = tuple(_TAGS[name] for name in names)
        if self.row["type"] == "xml" and names[-1] in ("id", "book"):
            names = (*names[:-1], f"@{names[-1]}")
        return (*self.prefix, *names)

    @property
    def is_text(self) -> bool:
        """Return whether all values are texts."""
        return self.row["type"] in TEXTS

    def number(self, rng: random.Random) -> Any:
        """A value of the field `px`, of the row's kind."""
        kind, type_ = self.row["kind"], self.row["type"]
        count = rng.randrange(-3, 12)
        if kind == "integer":
            if type_ == "bson":
                return bson.Int64(count)
            return str(count) if self.is_text else count
        if kind == "nan" and rng.random() < 0.3:
            return float("nan")
        cents = Decimal(count) + Decimal(rng.randrange(1, 100)).scaleb(-2)
        if kind != "decimal":
            # Thirds need every digit of a double: sums of such are no double themselves.
            double = rng.choice([float(cents), count / 3])
            return format(cents, "f") if self.is_text else double
        if type_ in ("json", "composite-local"):
            return cents + Decimal(rng.randrange(1, 10**9)).scaleb(-25)
        exact = cents + Decimal(rng.randrange(1, 100)).scaleb(-4)
        return bson.Decimal128(exact) if type_ == "bson" else format(exact, "f") if self.is_text else exact

    def time(self, rng: random.Random, tick: int) -> Any:
        """A value of the field `ts`, which orders a sequence group; a later tick is a later time."""
        group, type_ = self.row["group"], self.row["type"]
        if group in ("number", "none"):
            return str(tick) if self.is_text else tick
        at = _START + timedelta(milliseconds=500 * tick)
        if group == "iso_time":
            # Writers leave a fraction of nothing out, and have zones of their own.
            if rng.random() < 0.3:
                return (at + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S.%f") + "+02:00"
            return at.strftime("%Y-%m-%dT%H:%M:%S") + ("Z" if tick % 2 == 0 else ".5Z")
        return msgpack.Timestamp.from_datetime(at) if type_ == "msgpack" else at

    def count(self, number: int) -> Any:
        """A value of the field `qty`."""
        if self.row["type"] == "bson":
            return bson.Int64(number)
        return str(number) if self.is_text else number

    def key_value(self, name: str) -> Any:
        """The value of a key field in the message; a key that is a number is one where the type has numbers."""
        if self.row["key"] != "number" or self.is_text:
            return name
        return bson.Int64(int(name)) if self.row["type"] == "bson" else int(name)

    def with_key(self, body: Object, names: tuple[str, ...]) -> Object:
        """A message with its key fields."""
        for path, name in zip(self.key.paths, names, strict=False):
            body = with_value(body, path, self.key_value(name))
        return body

    def key_bytes(self, names: tuple[str, ...]) -> bytes:
        """The Kafka key of a record."""
        if not self.key.paths:
            return names[0].encode()
        return self.key.text_of(list(names[: len(self.key.paths)])).encode()

    def spelled(self, names: tuple[str, ...]) -> bytes:
        """The same key as Python's `json.dumps` writes it, with a space and escapes."""
        texts = [exact_json.write(name).decode() for name in names]
        return f"[{', '.join(texts)}]".encode().replace(b"a", b"\\u0061")

    @property
    def settings(self) -> Settings:
        """The settings in the form of the oracle."""
        row = self.row
        steps = Steps(
            trimmed=(self.path("state"), *self.key.paths) if row["steps"] in ("preprocess", "both") else (),
            counted=self.path("seen") if row["steps"] in ("enrich", "both") else None,
            as_text=self.is_text,
        )
        depth = None if row["depth"] == "any" else int(row["depth"]) + len(self.prefix)
        group = Group(self.path("ts"), (self.path("px"), self.path("note")))
        return Settings(
            format=self.format,
            key=self.key,
            nulls=row["nulls"],  # type: ignore[arg-type]
            depth=depth,
            default_command="delta_publish" if row["command"] == "delta" else "publish",
            rules={} if row["rule"] == "none" else {self.ruled: row["rule"]},
            groups=() if row["group"] == "none" else (group,),
            ttl_ms=1000 * TTL_S if row["expiration"] == "topic" else 0,
            steps=steps,
            max_bytes=MAX_BYTES,
            says_source=row["guarantee"] == "at_least_once",
            partition=0 if row["partition"] == "alone" else partition_of(self.key_bytes(("1", "x")), PARTITIONS),
            partitions=1 if row["partition"] == "alone" else PARTITIONS,
            foreign="move" if row["partition"] == "alone" else row["partition"],  # type: ignore[arg-type]
        )

    @property
    def ruled(self) -> Path:
        """The field with the merge rule."""
        return self.path({"number": "px", "array": "log", "text": "note"}[RULES[self.row["rule"]]])

    def topic(self, directory: File) -> Object:
        """The settings in the form of the product."""
        model = self.settings
        settings: Object = {
            "message_type": self.row["type"],
            "key": [pointer_of(path) for path in self.key.paths] or "explicit",
            "default_command": model.default_command,
            "null_policy": model.nulls,
            "merge_depth": model.depth,
            "merge_rules": {pointer_of(path): rule for path, rule in model.rules.items()},
            "sequence_groups": [
                {"by": pointer_of(group.by), "fields": [pointer_of(path) for path in group.fields]}
                for group in model.groups
            ],
            "max_record_bytes": MAX_BYTES,
            "max_depth": MAX_DEPTH,
            "dlq_max_ratio": 1,
            "expiration": model.ttl_ms / 1000 or None,
            "source_header": model.says_source,
            "foreign_partition": model.foreign,
        }
        if model.steps.trimmed:
            settings["preprocess"] = [{"use": "trim", "settings": {"paths": list(map(list, model.steps.trimmed))}}]
        if model.steps.counted is not None:
            counted = {"path": list(model.steps.counted), "as_text": model.steps.as_text}
            settings["enrich"] = [{"use": "count_updates", "settings": counted}]
        if isinstance(self.format, Composite):
            settings["parts"] = ["json", "nvfix"]
        if isinstance(self.format, Avro):
            file = directory / "schema.avsc"
            file.write_bytes(exact_json.write(self.format.schema))
            settings["schema"] = str(file)
        return settings


def layout_of(row: Row) -> Layout:
    """The layout of a row."""
    prefix = _PREFIXES.get(row["type"], ())
    formats = {
        "json": Json, "msgpack": Msgpack, "bson": Bson, "nvfix": Nvfix, "fix": Fix, "xml": Xml,
        "composite-local": Composite,
    }  # fmt: skip
    format_ = Avro(_schema(row), MAX_DEPTH) if row["type"] == "avro" else formats[row["type"]](MAX_DEPTH)
    bare = Layout(row, prefix, format_, Key(()))
    return Layout(row, prefix, format_, Key(tuple(bare.path(*names) for names in _KEYS[row["key"]])))


def _schema(row: Row) -> Object:
    """The Avro schema: all fields may be null."""
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 6}
    instant = {"type": "long", "logicalType": "timestamp-micros"}
    id_ = "long" if row["key"] == "number" else "string"
    number = {"integer": "long", "double": "double", "decimal": decimal, "nan": "double"}[row["kind"]]
    time = {"none": "long", "number": "long", "iso_time": "string", "native_time": instant}[row["group"]]
    inner = _record("J", id="string", w="long")
    return _record(
        "Order", id=id_, book="string", k=_record("K", j=inner, id="string", w="long"), qty="long", px=number,
        log={"type": "array", "items": "string"}, state="string", note="string", ts=time, seen="long",
        o=_record("O", x="long", y="string", z=_record("Z", u="long", v="long")),
    )  # fmt: skip


def _record(name: str, **fields: Any) -> Object:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": ["null", type_], "default": None} for field, type_ in fields.items()],
    }


def is_flat(row: Row) -> bool:
    """Return whether a record of the row has no objects in it."""
    return row["type"] in FLAT
