"""Converts an Avro schema to columns."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from processor.codec.avro.scalar import logical_of
from processor.codec.avro.schema import Node, Schema
from spark_integration.read.schemas.json_schema import Unmapped

_PLAIN: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_LOGICAL: Final[dict[type, DataType]] = {
    uuid.UUID: StringType(),
    dt.date: DateType(),
    dt.time: StringType(),  # Spark 4.0 has no type for a time of day.
    dt.datetime: TimestampType(),
}
_DIGITS_MAX: Final = 38
"""Most digits of Spark's decimals."""


def avro_struct(schema: Schema) -> StructType:
    """Convert an Avro schema to columns, all of them nullable, as a delta has only some of the fields.

    Logical types become Spark's types; a UUID, an enum and a time of day are text. A union of null and one type becomes
    that type, and so does a union of types that are one type in Spark.

    Raises:
        Unmapped: Spark has no type for a part of it; the error names the part.
    """
    return _record(schema, schema.root, (), ())


def _record(schema: Schema, body: Any, path: tuple[str, ...], around: tuple[str, ...]) -> StructType:
    if body["name"] in around:
        raise Unmapped(path, f"the record {body['name']} inside of itself")
    around = (*around, body["name"])
    fields = ((field["name"], _type(schema, field["type"], (*path, field["name"]), around)) for field in body["fields"])
    return StructType([StructField(name, data_type) for name, data_type in fields])


def _type(schema: Schema, node: Node, path: tuple[str, ...], around: tuple[str, ...]) -> DataType:
    word, body = schema.shape(node)
    if word == "union":
        return _union(schema, body, path, around)
    if word == "record":
        return _record(schema, body, path, around)
    if word == "array":
        return ArrayType(_type(schema, body["items"], path, around))
    if word == "map":
        return MapType(StringType(), _type(schema, body["values"], path, around))
    if word == "null":
        raise Unmapped(path, "the type null and no other")
    logical = logical_of(word, body)
    if logical is None:
        return _PLAIN[word]
    if logical.kind is Decimal:
        return _decimal(body, path)
    if str(body["logicalType"]).startswith("local-"):
        return TimestampNTZType()
    return _LOGICAL[logical.kind]


def _decimal(body: Any, path: tuple[str, ...]) -> DataType:
    precision = body["precision"]
    if precision > _DIGITS_MAX:
        raise Unmapped(path, f"a decimal of {precision} digits, and Spark's have {_DIGITS_MAX}")
    return DecimalType(precision, body.get("scale", 0))


def _union(schema: Schema, union: list[Node], path: tuple[str, ...], around: tuple[str, ...]) -> DataType:
    types: list[DataType] = []
    for branch in schema.branches(union):
        data_type = _type(schema, branch, path, around)
        if data_type not in types:
            types.append(data_type)
    if len(types) == 1:
        return types[0]
    for wide, narrow in ((LongType(), IntegerType()), (DoubleType(), FloatType())):
        if len(types) == 2 and wide in types and narrow in types:
            return wide
    if not types:
        raise Unmapped(path, "the type null and no other")
    raise Unmapped(path, f"one of several types ({', '.join(one.simpleString() for one in types)})")
