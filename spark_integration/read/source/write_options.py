"""Parses the options of `df.write.format("sow")` and of `INSERT INTO` a table of this format."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast, get_args

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from processor.errors import ConfigurationError
from spark_integration.read.metadata_columns import SOW
from spark_integration.read.source.source_options import SourceOptions, parse_options

Command: TypeAlias = Literal["delta", "record", "delete"]
"""The content of each row: some fields of its record, the full record, or only its key to delete it."""

_TEXTS: Final = ArrayType(StringType())
_WAYS: Final = (
    "columns 'price,note' (these, their nulls too), mask 'column' (an array of names or JSON Pointers in each row) or "
    "nulls 'skip' (every column that is not null)"
)
_LOST: Final = "what the producer gives up could not be written again in order; leave it out"
_OURS: Final = {
    "message.timeout.ms": _LOST,
    "delivery.timeout.ms": _LOST,
    "enable.idempotence": "it is always true",
    "transactional.id": "rows are written without transactions",
    "partitioner": "keys go where Kafka's own partitioner puts them, as the workers do",
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options; pickled for the executors."""

    source: SourceOptions
    """The topic, its settings, and librdkafka's properties."""
    command: Command
    """The content of each row."""
    key: tuple[str, ...]
    """The key columns."""
    columns: tuple[str, ...]
    """The columns of the message, key columns first."""
    mask: str | None
    """The column with the fields that a row carries; None: all columns."""
    removed: str | None
    """The column with the fields that a delta removes."""
    deleted: str | None
    """The column that marks a row as a delete."""
    order_by: tuple[str, ...]
    """The columns that order the rows of a key."""
    skip_nulls: bool
    """True if a null is left out."""
    client: str
    """The prefix of the client names of the tasks, unique for this write."""

    @property
    def kafka(self) -> dict[str, str]:
        """The properties of the producer: it drops no record while it sends later ones."""
        return {**self.source.kafka, "message.timeout.ms": "0", "enable.gapless.guarantee": "true"}

    @property
    def topic(self) -> str:
        """The Kafka topic."""
        return self.source.settings.kafka_topic("publish")


def parse_write_options(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    """Parse the options for rows of these columns.

    Raises:
        ConfigurationError: an option is unknown, missing, or does not fit the columns.
    """
    own, source = parse_options(options, needs_sow=False)
    for name, reason in _OURS.items():
        if name in source.kafka:
            raise ConfigurationError(f"option 'kafka.{name}' cannot be given: {reason}")
    command = own.get("command", "")
    if command not in get_args(Command):
        raise ConfigurationError(
            f"option 'command' is {command!r}; say 'delta' (some fields), 'record' (the full record) or 'delete'"
        )
    nulls = own.get("nulls", "")
    if nulls not in ("", "keep", "skip"):
        raise ConfigurationError(f"option 'nulls' is {nulls!r}; say 'keep' (publish them) or 'skip' (leave them out)")
    columns = _Columns(schema)
    key = columns.listed("key", own)
    if not key:
        raise ConfigurationError("no option 'key': name the columns of the topic's key, such as 'id' or 'desk,id'")
    _check_key(columns, key, source)
    mask, removed, deleted = (own.get(name) for name in ("mask", "removed", "deleted"))
    kinds: dict[str, DataType] = {"mask": _TEXTS, "removed": _TEXTS, "deleted": BooleanType()}
    for name, kind in kinds.items():
        columns.check(name, own.get(name), kind)
    chosen = columns.listed("columns", own)
    if command == "delta" and "columns" not in own and mask is None and nulls != "skip":
        raise ConfigurationError(f"nothing says which columns are in a delta, and a null is not a missing one: {_WAYS}")
    if mask is not None and ("columns" in own or nulls):
        raise ConfigurationError("option 'mask' says what is in a delta; leave 'columns' and 'nulls' out")
    order_by = columns.listed("orderBy", own)
    for name in order_by:
        if isinstance(kind := columns.type("orderBy", name), MapType | StructType | ArrayType | VariantType):
            raise ConfigurationError(f"option 'orderBy': column {name!r} is {kind.simpleString():.100}: no order")
    if "columns" not in own:
        apart = {SOW, mask, removed, deleted}
        chosen = tuple(name for name in schema.names if name not in apart)
    in_body = key if source.settings.topic.key_fields or "config" not in own else ()
    rest = tuple(name for name in chosen if name not in key)
    client = f"{own.get('client', 'spark')}/{uuid.uuid4()}"
    return WriteOptions(
        source, cast("Command", command), key, (*in_body, *rest), mask, removed, deleted, order_by,
        nulls == "skip", client,
    )  # fmt: skip


class _Columns:
    """The columns of the rows."""

    def __init__(self, schema: StructType) -> None:
        self._types: dict[str, DataType] = {field.name: field.dataType for field in schema.fields}

    def type(self, option: str, name: str) -> DataType:
        """The type of a column.

        Raises:
            ConfigurationError: it does not exist.
        """
        if name not in self._types:
            raise ConfigurationError(
                f"option {option!r} names {name!r}, and the rows have no such column; they have: "
                f"{', '.join(self._types)}"
            )
        return self._types[name]

    def listed(self, option: str, own: Mapping[str, str]) -> tuple[str, ...]:
        """The columns that an option names, separated by commas."""
        names = tuple(dict.fromkeys(name.strip() for name in own.get(option, "").split(",") if name.strip()))
        for name in names:
            self.type(option, name)
        return names

    def check(self, option: str, name: str | None, kind: DataType) -> None:
        """Make sure that a column has this type."""
        if name is None:
            return
        found = self.type(option, name)
        same = isinstance(found, ArrayType) and isinstance(found.elementType, StringType)
        if not (same if isinstance(kind, ArrayType) else found == kind):
            raise ConfigurationError(
                f"option {option!r}: column {name!r} is {found.simpleString()}, not {kind.simpleString()}"
            )


def _check_key(columns: _Columns, key: tuple[str, ...], source: SourceOptions) -> None:
    for name in key:
        kind = columns.type("key", name)
        if not isinstance(kind, StringType | IntegralType | BooleanType):
            raise ConfigurationError(
                f"key column {name!r} is {kind.simpleString()}; a key is made of strings, whole numbers and booleans"
            )
    fields = source.settings.topic.key_fields
    if source.has_config and fields and fields != tuple(f"/{name}" for name in key):
        raise ConfigurationError(
            f"option 'key' names {', '.join(key)}, but the topic's settings say {', '.join(fields)}; name the same "
            "fields in the same order"
        )
