from __future__ import annotations

import datetime as dt
import json
import math

import pytest

from processor.errors import Stop

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sowstream[avro]'")

import bson
import msgpack
import pyarrow as pa
from bson.datetime_ms import DatetimeMS
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_integration.foundation.arrow_records import headers_column
from spark_integration.foundation.settings import topic_settings
from spark_integration.read.decode import BatchDecoder, Decoding
from spark_integration.read.misfit import MISFIT
from spark_integration.read.schemas.schema import pinned
from tests.codec.avro_world import file_codec, plain, record

HOME = record(("zip", ["null", "string"], None), name="Home")
ORDER = record(("id", "long"), ("home", ["null", HOME], None))
WHEN = dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC)


def struct(**types) -> StructType:
    """Columns of these types."""
    return StructType([StructField(name, data_type) for name, data_type in types.items()])


def decoder(directory, columns, **changes) -> BatchDecoder:
    """The decoder of an executor for a topic of orders."""
    file_codec(ORDER, directory)
    settings = pinned(topic_settings("orders", {"message_type": "avro", "schema": str(directory / "schema.avsc")}))
    # Whatever becomes of the file, the schema of the start counts.
    (directory / "schema.avsc").write_text('{"type": "record", "name": "Other", "fields": []}')
    return BatchDecoder(Decoding(settings, "orders.sow", columns, **({"is_delta": False, "matching": None} | changes)))


def batch(*values, headers=()) -> pa.RecordBatch:
    """Rows as they come from Spark, with keys from `a` and offsets from 10."""
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.binary()),
            "sow_key": [chr(ord("a") + index) for index in range(count)],
            "timestamp": pa.array([WHEN] * count, pa.timestamp("us", "UTC")),
            "headers": headers_column([list(headers)] * count),
            "partition": pa.array([3] * count, pa.int32()),
            "offset": [10 + index for index in range(count)],
        }
    )


@pytest.mark.parametrize(
    ("columns", "value", "said"),
    [
        (struct(id=LongType()), b"\x04\x00\xff", "undecodable: the record of schema Order ends at byte 2 of 3"),
        (struct(id=StringType()), plain(ORDER, {"id": 7}), "/id is int where the schema means text"),
        (struct(id=ByteType()), plain(ORDER, {"id": 1000}), "/id is 1000, which has no room in 8 bits"),
        (
            struct(home=struct(zip=LongType())),
            plain(ORDER, {"id": 1, "home": {"zip": "x"}}),
            "/home/zip is str where the schema means an integer",
        ),
    ],
)
def test_the_error_of_a_record_has_its_place(tmp_path, columns, value, said) -> None:
    """The error of a record that cannot be decoded has its topic, partition, offset and key, also if Arrow finds it."""
    place = r"orders\.sow, partition 3, offset 11, key 'b'"
    with pytest.raises(Stop, match=f"{place}: {said}.*; publish the record again"):
        decoder(tmp_path, columns).decode(batch(None, value))


def test_half_a_surrogate_pair_is_a_misfit(tmp_path) -> None:
    """Half a surrogate pair, which a codec of a plug-in may let pass, has no room in a column, as no text has it."""
    texts = [{"id": "a"}, {"id": "\ud800"}]
    with pytest.raises(Stop, match=r"offset 11, key 'b': a value has no room in its column: .* surrogates not allowed"):
        decoder(tmp_path, struct(id=StringType()))._array(batch(b"", b""), texts)


def test_a_record_that_does_not_match_the_filter_need_not_fit(tmp_path) -> None:
    """A record that does not match may have other types than the columns; matching rows keep all columns."""
    rows = batch(*(plain(ORDER, {"id": number}) for number in (1000, 1, 2000, 2)))
    found = decoder(tmp_path, struct(id=ByteType()), matching="/id < 100 AND SOW_KEY() != 'x'").decode(rows)
    assert found.column("record").to_pylist() == [{"id": 1}, {"id": 2}]
    assert found.column("offset").to_pylist() == [11, 13]


def test_a_delta_carries_the_fields_of_its_header(tmp_path) -> None:
    """A delta carries the fields of its header, with empty objects and nulls; a row without a value has none."""
    codec = file_codec(ORDER, tmp_path)
    data, headers = codec.encode_delta({"id": 1, "home": {}})
    decode = decoder(tmp_path, struct(id=LongType(), home=struct(zip=StringType())), is_delta=True).decode
    found = decode(batch(data, None, headers=headers))
    assert found.column("record").to_pylist() == [{"id": 1, "home": {"zip": None}}, None]
    assert found.column("changed").to_pylist() == [["/id", "/home"], []]
    data, headers = codec.encode_delta({"id": 1, "home": {"zip": None}})
    assert decode(batch(data, headers=headers)).column("changed").to_pylist() == [["/id", "/home/zip"]]


TIME = TimestampType()
HOSTILE_TYPES = [
    StringType(), BooleanType(), ByteType(), LongType(), FloatType(), DoubleType(), DecimalType(38, 0),
    DecimalType(38, 38), BinaryType(), DateType(), TIME, TimestampNTZType(), ArrayType(TIME), ArrayType(BinaryType()),
    MapType(StringType(), TIME), MapType(StringType(), BinaryType()), struct(a=TIME), struct(a=BinaryType()),
]  # fmt: skip
HOSTILE_TEXTS = [
    "é", "==", "²", "\U0001f600", "\0", "1E+99999999999999999", "9" * 5000, "2024-02-30", "0000-01-01", "NaN", "INF",
    "2024-01-01T00:00:00." + "9" * 5000 + "Z", "9999-12-31T23:59:59-23:59",
]  # fmt: skip
HOSTILE_VALUES = {
    "json": [
        *(json.dumps(text) for text in HOSTILE_TEXTS), "1e400", "-1e400", "1e-400", "1" * 5000, "1E-99999999999999999",
        "253402300800", "9223372036854775808", "0.1", "3.5e38", '["é"]', '{"a": "é"}', "true",
    ],
    "msgpack": [
        *HOSTILE_TEXTS, *(msgpack.Timestamp(seconds) for seconds in (2**40, -(2**62), 2**63 - 1, 253402300800)),
        [msgpack.Timestamp(2**40)], {"a": msgpack.Timestamp(2**40)}, 2**64 - 1, math.nan, math.inf, 1e308, b"\xff",
        msgpack.ExtType(5, b"x"),
    ],
    "bson": [
        *HOSTILE_TEXTS, *map(DatetimeMS, (2**62, -(2**63))), *map(bson.Decimal128, ("NaN", "sNaN", "1E+6144")),
        bson.Decimal128("1E-6176"), bson.MaxKey(), bson.Timestamp(2**32 - 1, 0), bson.Regex("a"), bson.DBRef("a", 1),
        math.nan, b"\xff", bson.Binary(b"x" * 16, 4),
    ],
}  # fmt: skip
ENCODED = {"json": lambda value: f'{{"v": {value}}}'.encode(), "msgpack": lambda value: msgpack.packb({"v": value}),
           "bson": lambda value: bson.encode({"v": value})}  # fmt: skip


@pytest.mark.parametrize("message_type", HOSTILE_VALUES)
@pytest.mark.parametrize("column", HOSTILE_TYPES, ids=DataType.simpleString)
def test_each_value_fits_its_column_or_is_a_misfit(message_type, column) -> None:
    """A value that has no room in a column of any type is a misfit with its reason, and never another error."""
    settings = topic_settings("orders", {"message_type": message_type, "key": ["/v"]})
    decoding = Decoding(settings, "orders.sow", struct(v=column), is_delta=False, matching=None, shows_misfits=True)
    for value in HOSTILE_VALUES[message_type]:
        found = BatchDecoder(decoding).decode(batch(ENCODED[message_type](value)))
        [is_record], [misfit] = found.column("record").is_valid().to_pylist(), found.column(MISFIT).to_pylist()
        assert is_record == (misfit is None), value
        assert is_record or misfit["reason"], value


@pytest.mark.parametrize(
    ("message_type", "column", "value", "said"),
    [
        ("msgpack", TIME, msgpack.Timestamp(2**40), "/v is a time outside of the years 1 to 9999"),
        ("json", BinaryType(), '"é"', "/v is a text where the schema means bytes in Base64"),
    ],
)
def test_the_error_of_a_value_without_room_has_its_place(message_type, column, value, said) -> None:
    """A query that fails at a value has the record's place and the field in its error, whichever library refused it."""
    settings = topic_settings("orders", {"message_type": message_type, "key": ["/v"]})
    decoder = BatchDecoder(Decoding(settings, "orders.sow", struct(v=column), is_delta=False, matching=None))
    with pytest.raises(Stop, match=f"offset 10, key 'a': {said}; publish the record again"):
        decoder.decode(batch(ENCODED[message_type](value)))
