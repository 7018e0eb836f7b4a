"""Converts values to the wire form of one schema: the branch of each union, the raw form of each logical type."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from processor.codec.avro.default import default_of
from processor.codec.avro.scalar import Logical, logical_of
from processor.codec.avro.schema import PYTHON_TYPES, Node, Schema, classes
from processor.codec.value_checks import binary_float
from processor.record import Value

Prepare: TypeAlias = Callable[[Value], Any]
"""It never changes the value; TypeError where the type has no way to write it, saying where."""

_SIMPLE: Final = frozenset(("boolean", "long", "string", "bytes", "double"))
"""Types whose misfits fastavro itself refuses: a record checks no more than the class."""


def compile_prepare(schema: Schema, branch_names: Mapping[int, list[str]]) -> Prepare:
    """The preparation of a record; its missing fields get their defaults."""
    prepare = _Compiler(schema, branch_names).node(schema.root)
    assert prepare is not None, "a record has one"
    return prepare


class _Compiler:
    def __init__(self, schema: Schema, branch_names: Mapping[int, list[str]]) -> None:
        self._schema = schema
        self._branch_names = branch_names
        self._records: dict[str, Prepare] = {}
        self._path: list[str] = []

    @property
    def _here(self) -> str:
        return "".join(f"/{name}" for name in self._path)

    def node(self, node: Node) -> Prepare | None:
        """The preparation of a value; None where fastavro checks and writes it as it is."""
        word, body = self._schema.shape(node)
        if word == "record":
            return self._record(body)
        if word == "union":
            return self._union(body)
        if word == "array":
            return self._array(self.node(body["items"]), self._here)
        if word == "map":
            return self._map(self.node(body["values"]), self._here)
        if word == "enum":
            return _enum(body, self._here)
        logical = logical_of(word, body)
        if logical is not None:
            return _logical(logical, self._here)
        return None if word == "null" else _plain(word, body, self._here)

    def _record(self, body: Any) -> Prepare:
        name = body["name"]
        if name in self._records:
            return self._records[name]
        defaults = {field["name"]: default_of(self._schema, field) for field in body["fields"]}
        names = defaults.keys()
        simple: list[tuple[str, type]] = []
        inner: list[tuple[str, Prepare]] = []
        where = self._here

        def prepare(value: Value) -> Any:
            if not isinstance(value, dict):
                raise TypeError(f"{where}: {type(value).__name__} is no record {name}")
            raw = dict(value)
            if raw.keys() != names:
                _fill(raw, defaults, f"{where}: record {name}" if where else f"record {name}")
            for field, kind in simple:
                if type(raw[field]) is not kind:
                    raise TypeError(f"{where}/{field}: {type(raw[field]).__name__} where {kind.__name__} is meant")
            for field, below in inner:
                raw[field] = below(raw[field])
            return raw

        self._records[name] = prepare
        for field in body["fields"]:
            word, definition = self._schema.shape(field["type"])
            if word in _SIMPLE and logical_of(word, definition) is None:
                simple.append((field["name"], PYTHON_TYPES[word]))
                continue
            self._path.append(field["name"])
            if (below := self.node(field["type"])) is not None:
                inner.append((field["name"], below))
            self._path.pop()
        return prepare

    def _union(self, union: list[Node]) -> Prepare:
        prepares = [self.node(branch) for branch in union]
        names = self._branch_names.get(id(union))
        where = self._here
        if names is not None:
            return _choosing(
                classes(self._schema, union),
                list(zip(names, prepares, strict=True)),
                _record_fields(self._schema, union),
                where,
            )
        inner = next((p for p, b in zip(prepares, union, strict=True) if self._schema.shape(b)[0] != "null"), None)
        nullable = len(union) != 1 or inner is None

        def prepare(value: Value) -> Any:
            if value is None:
                if not nullable:
                    raise TypeError(f"{where}: null where there is a value")
                return None
            if inner is None:
                raise TypeError(f"{where}: {type(value).__name__} where null is meant")
            return inner(value)

        return prepare

    def _array(self, item: Prepare | None, where: str) -> Prepare:
        def prepare(value: Value) -> Any:
            if not isinstance(value, list):
                raise TypeError(f"{where}: {type(value).__name__} is no array")
            return value if item is None else [item(one) for one in value]

        return prepare

    def _map(self, member: Prepare | None, where: str) -> Prepare:
        def prepare(value: Value) -> Any:
            if not isinstance(value, dict):
                raise TypeError(f"{where}: {type(value).__name__} is no map")
            return value if member is None else {name: member(one) for name, one in value.items()}

        return prepare


def _fill(raw: dict[str, Any], defaults: Mapping[str, Callable[[], Value] | None], what: str) -> None:
    for name in raw:
        if name not in defaults:
            close = difflib.get_close_matches(name, defaults, n=1)
            raise TypeError(f"{what} has no field {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    for name, make in defaults.items():
        if name not in raw:
            if make is None:
                raise TypeError(f"{what} needs a value of field {name!r}")
            raw[name] = make()


def _record_fields(schema: Schema, union: list[Node]) -> list[frozenset[str] | None]:
    """The field names of each branch that is a record; none for a map: any name is one of its."""
    shapes = [schema.shape(branch) for branch in union]
    return [frozenset(f["name"] for f in body["fields"]) if word == "record" else None for word, body in shapes]


def _choosing(
    kinds: list[type], branches: list[tuple[str, Prepare | None]], fields: list[frozenset[str] | None], where: str
) -> Prepare:
    """The branch whose values are of the value's class, else the first that takes it."""
    exact = {kind: index for index, kind in reversed(list(enumerate(kinds)))}

    def prepare(value: Value) -> Any:
        kind = type(value)
        first = exact.get(kind)
        order = range(len(kinds)) if first is None else (first, *range(len(kinds)))
        for index in order:
            names = fields[index]
            if names is not None and (not isinstance(value, dict) or not value.keys() <= names):
                continue
            if (value is None) is not (kinds[index] is type(None)):
                continue
            name, inner = branches[index]
            try:
                return name, {"v": value if inner is None else inner(value)}
            except (TypeError, ValueError, OverflowError):
                continue
        raise TypeError(f"{where}: no type of the union takes {kind.__name__}")

    return prepare


def _plain(word: str, body: Any, where: str) -> Prepare:
    """Values that fastavro would write though they are of another type, or outside of the type, is refused."""
    if word in {"float", "double"}:
        return _float(where, is_short=word == "float")
    kind: type[Any] = PYTHON_TYPES[word]
    low, high = (-(2**31), 2**31) if word == "int" else (-(2**63), 2**63)
    size = body.get("size") if word == "fixed" else None

    def prepare(value: Value) -> Any:
        if not isinstance(value, kind) or (kind is int and type(value) is bool):
            raise TypeError(f"{where}: {type(value).__name__} where {word} is meant")
        if kind is int and not low <= value < high:
            raise TypeError(f"{where}: {value} is no {word}")
        if size is not None and len(value) != size:
            raise TypeError(f"{where}: {len(value)} bytes where {size} are meant")
        return value

    return prepare


def _float(where: str, *, is_short: bool) -> Prepare:
    def prepare(value: Value) -> float:
        if type(value) is float and not is_short:
            return value
        try:
            return binary_float(value, is_short=is_short)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{where}: {error}") from None

    return prepare


def _enum(body: Any, where: str) -> Prepare:
    numbers = {symbol: number for number, symbol in enumerate(body["symbols"])}

    def prepare(value: Value) -> int:
        number = numbers.get(value) if isinstance(value, str) else None
        if number is None:
            raise TypeError(f"{where}: {value!r:.100} is no symbol of {body['name']}")
        return number

    return prepare


def _logical(logical: Logical, where: str) -> Prepare:
    def prepare(value: Value) -> Any:
        try:
            return logical.write(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{where}: {error}") from None

    return prepare
