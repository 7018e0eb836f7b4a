"""Converts values of the writer's schema to values of the reader's schema: Avro's schema resolution.

fastavro's own fills a delta with defaults, leaves defaults as JSON, and hands out the same list twice; so the bytes are
read by the writer's schema, and functions made here, once for each pair of schemas, do the rest. They work in place.
Two ways: `partial` gives the fields that are there, for a delta; otherwise defaults are filled in.

Beyond Avro's specification: a record's or an enum's name matters only where it distinguishes the branches of a union.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from processor.codec.avro.default import default_of
from processor.codec.avro.scalar import Convert, Mismatch, int_check, logical_of, scalar
from processor.codec.avro.schema import Node, Schema, classes, is_marked, replaces_whole
from processor.codec.schema_registry.topic_schema import UnusableSchema
from processor.errors import RecordRejected
from processor.record import Value

VISITS_MAX: Final = 100_000
"""Most comparisons of a type with a type; records that do not fit are compared again by each path to them."""

_UNREAD: Final = object()


class Resolver:
    """Makes the conversion for one pair of schemas."""

    def __init__(self, writer: Schema, reader: Schema, branch_names: Mapping[int, list[str]]) -> None:
        """Take the schemas.

        Args:
            writer: the schema that wrote the bytes.
            reader: the schema of the values.
            branch_names: the names of the branches of the writer's unions on the wire.
        """
        self._writer = writer
        self._reader = reader
        self._branch_names = branch_names
        self._records: dict[tuple[str, str, bool], Convert] = {}
        self._path: list[str] = []
        self._visits = 0

    def compile(self, *, partial: bool) -> Convert:
        """The conversion of a record; it raises RecordRejected for a value that does not fit, which all may be."""
        self._path.clear()
        try:
            return self._record(self._writer.root, self._reader.root, partial=partial)
        except Mismatch as error:
            return _refusing(f"the writer's schema does not fit the topic's: {error}")

    @property
    def _here(self) -> str:
        """The place, in the writer's record, of the types that are compared."""
        return "".join(f"/{name}" for name in self._path)

    def _node(self, writer: Node, reader: Node, *, partial: bool) -> Convert | None:
        """The conversion of a value; None where it is itself."""
        self._visits += 1
        if self._visits > VISITS_MAX:
            raise UnusableSchema("its types do not fit the topic's in too many places")
        w_word, w_body = self._writer.shape(writer)
        r_word, r_body = self._reader.shape(reader)
        if partial and w_word == "null":
            # A null of a delta may mean that nothing is said: whether it may be there is the merge's business.
            return None
        if w_word == "union":
            return self._from_union(w_body, reader, partial=partial)
        if r_word == "union":
            return self._to_union(writer, r_body, partial=partial)
        if w_word == r_word == "record":
            return self._record(w_body, r_body, partial=partial)
        if w_word == r_word == "array":
            item = self._node(w_body["items"], r_body["items"], partial=False)
            if self._is_int(w_body["items"], r_body["items"]):
                return _ints(self._here)
            return None if item is None else lambda raw: [item(one) for one in raw]
        if w_word == r_word == "map":
            member = self._node(w_body["values"], r_body["values"], partial=partial)
            return None if member is None else lambda raw: {name: member(one) for name, one in raw.items()}
        if w_word == r_word == "enum":
            return _enum(w_body, r_body, self._here)
        return scalar(w_word, w_body, r_word, r_body, self._here)

    def _is_int(self, writer: Node, reader: Node) -> bool:
        """True if numbers of an `int` are values as they are."""
        r_word, r_body = self._reader.shape(reader)
        is_number = r_word in ("int", "long") and logical_of(r_word, r_body) is None
        return is_number and self._writer.shape(writer)[0] == "int"

    def _record(self, writer: Any, reader: Any, *, partial: bool) -> Convert:
        key = (writer["name"], reader["name"], partial)
        if key in self._records:
            return self._records[key]
        before = dict(self._records)
        try:
            return self._new_record(key, writer, reader, partial=partial)
        except Mismatch:
            # What was made on the way is not whole, and may be asked for again by another branch of a union.
            self._records = before
            raise

    def _new_record(self, key: tuple[str, str, bool], writer: Any, reader: Any, *, partial: bool) -> Convert:
        fields = {field["name"]: field for field in reader["fields"]}
        written = {field["name"] for field in writer["fields"]}
        aliases = {
            alias: field
            for field in reader["fields"]
            if field["name"] not in written
            for alias in field.get("aliases", ())
        }
        steps: list[tuple[str, str, Convert | None]] = []
        defaults: dict[str, Callable[[], Value]] = {}
        checks: list[Callable[[Any], None]] = []
        convert = _partial(steps) if partial else _whole(checks, steps, defaults)
        self._records[key] = convert
        resolved: set[str] = set()
        ints: list[str] = []
        for field in writer["fields"]:
            name = field["name"]
            target = fields.get(name) or aliases.get(name)
            if target is None or target["name"] in resolved:
                steps.append((name, "", None))
                continue
            resolved.add(target["name"])
            self._path.append(name)
            inner = self._node(field["type"], target["type"], partial=partial)
            self._path.pop()
            if not partial and name == target["name"] and self._is_int(field["type"], target["type"]):
                ints.append(name)
            elif inner is not None or name != target["name"]:
                steps.append((name, target["name"], inner))
        if ints:
            checks.append(_ints_of(ints, self._here))
        for name, field in fields.items():
            if name not in resolved and not partial:
                default = default_of(self._reader, field)
                if default is None:
                    raise Mismatch(f"{self._here}/{name}: the writer's schema lacks it and the reader's has no default")
                defaults[name] = default
        return convert

    def _from_union(self, union: list[Node], reader: Node, *, partial: bool) -> Convert | None:
        several = self._branch_names.get(id(union))
        depth = len(self._path)
        converts: list[Convert | None] = []
        problem: Mismatch | None = None
        fits = False
        for branch in union:
            is_null = self._writer.shape(branch)[0] == "null"
            try:
                converts.append(self._node(branch, reader, partial=partial))
                fits = fits or not is_null or len(union) == 1
            except Mismatch as error:
                del self._path[depth:]
                problem = error
                converts.append(_refusing(str(error)))
        if problem is not None and not fits:
            raise problem
        if several is None:
            return self._optional(union, converts)
        table = dict(zip(several, converts, strict=True))

        def convert(raw: Any) -> Value:
            name, held = raw
            inner = table[name]
            return held["v"] if inner is None else inner(held["v"])

        return convert

    def _optional(self, union: list[Node], converts: list[Convert | None]) -> Convert | None:
        """Of one type and null, in any order; fastavro says None or the value."""
        null: Convert | None = None
        inner: Convert | None = None
        for branch, convert in zip(union, converts, strict=True):
            if self._writer.shape(branch)[0] == "null":
                null = convert
            else:
                inner = convert
        if null is None and inner is None:
            return None

        def either(raw: Any) -> Value:
            if raw is None:
                return None if null is None else null(raw)
            return raw if inner is None else inner(raw)

        return either

    def _to_union(self, writer: Node, union: list[Node], *, partial: bool) -> Convert | None:
        """The branch of the same type and name, else the first that takes the writer's type."""
        depth = len(self._path)
        word, body = self._writer.shape(writer)
        kinds = classes(self._reader, union)
        order = sorted(range(len(union)), key=lambda index: -self._likeness(word, body, union[index]))
        problems = []
        for index in order:
            kind = kinds[index]
            try:
                inner = self._node(writer, union[index], partial=partial and not replaces_whole(kind))
            except Mismatch as error:
                del self._path[depth:]
                problems.append(str(error))
                continue
            return _marking(inner, kind) if is_marked(kind) else inner
        raise Mismatch(problems[0] if len(problems) == 1 else f"{self._here}: no type of the union takes {word}")

    def _likeness(self, word: str, body: Any, branch: Node) -> int:
        r_word, r_body = self._reader.shape(branch)
        if r_word != word:
            return 0
        if "name" not in body:
            return 3
        names = {r_body["name"], *r_body.get("aliases", ())}
        if body["name"] in names:
            return 3
        return 2 if body["name"].rpartition(".")[2] in {name.rpartition(".")[2] for name in names} else 1


def _whole(
    checks: list[Callable[[Any], None]],
    steps: list[tuple[str, str, Convert | None]],
    defaults: Mapping[str, Callable[[], Value]],
) -> Convert:
    def convert(record: Any) -> Value:
        for check in checks:
            check(record)
        for name, target, inner in steps:
            if name == target and inner is not None:
                record[name] = inner(record[name])
            else:
                value = record.pop(name)
                if target:
                    record[target] = value if inner is None else inner(value)
        for name, make in defaults.items():
            record[name] = make()
        return record

    return convert


def _partial(steps: list[tuple[str, str, Convert | None]]) -> Convert:
    def convert(record: Any) -> Value:
        for name, target, inner in steps:
            value = record.get(name, _UNREAD) if name == target else record.pop(name, _UNREAD)
            if value is not _UNREAD and target:
                record[target] = value if inner is None else inner(value)
        return record

    return convert


def _enum(writer: Any, reader: Any, where: str) -> Convert:
    """The reader's symbol of each number; it has a default for those it does not know, or has not."""
    readable = set(reader["symbols"])
    symbols = [symbol if symbol in readable else reader.get("default") for symbol in writer["symbols"]]

    def convert(raw: int) -> str:
        if not 0 <= raw < len(symbols):
            raise RecordRejected("undecodable", f"{where}: {raw} is the number of no symbol of {writer['name']}")
        symbol: str | None = symbols[raw]
        if symbol is None:
            raise RecordRejected(
                "schema_mismatch", f"{where}: {writer['symbols'][raw]!r} is no symbol of {reader['name']}"
            )
        return symbol

    return convert


def _ints_of(names: list[str], where: str) -> Callable[[Any], None]:
    """The check of the fields of a record that are an `int`, in C: one at a time takes half as long as to read them."""
    get, pack = itemgetter(names[0], *names), Struct(f"{len(names) + 1}i").pack  # The first one twice: always a tuple.

    def check(record: Any) -> None:
        try:
            pack(*get(record))
        except struct.error:
            for name in names:
                int_check(f"{where}/{name}")(record[name])

    return check


def _ints(where: str) -> Convert:
    """The check of many numbers of an `int`, in C."""
    check = int_check(where)

    def convert(raw: list[int]) -> Value:
        try:
            array("i", raw)
        except OverflowError:
            for one in raw:
                check(one)
        return raw

    return convert


def _marking(inner: Convert | None, kind: type) -> Convert:
    return kind if inner is None else lambda raw: kind(inner(raw))


def _refusing(problem: str) -> Convert:
    def convert(_raw: Any) -> Value:
        raise RecordRejected("schema_mismatch", problem)

    return convert
