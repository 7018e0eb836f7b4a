from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'sowstream[avro]'")

from spark_integration.foundation.sql import OUT_OF_RANGE, TINY_NUMBER
from spark_integration.read.schemas import json_columns
from spark_integration.read.schemas.schema import registry_schema, schema_file
from tests.codec.avro_world import record
from tests.spark.registry_server import schema_server

SCHEMAS = Path(__file__).parents[2] / "schemas"
DEFS = {"name": {"type": ["string", "null"]}, "self": {"type": "object", "properties": {"s": {"$ref": "#/$defs/self"}}}}


def columns(directory: Path, name: str, schema: object) -> str:
    """The columns of a file with this schema."""
    file = directory / name
    file.write_text(json.dumps(schema), encoding="utf-8")
    return schema_file(file).simpleString()


def avro(data_type: object) -> dict[str, object]:
    """A record of one field."""
    return record(("v", data_type))


def logical(word: str, name: str, **more: object) -> dict[str, object]:
    """A logical type."""
    return {"type": word, "logicalType": name, **more}


@pytest.mark.parametrize("name", ["order", "price", "ack", "dlq"])
def test_shipped_schemas_mean_the_same_columns_twice(name) -> None:
    """The shipped schemas give the same columns in the same order as JSON Schema and as Avro."""
    said = schema_file(SCHEMAS / f"{name}.schema.json")
    assert said == schema_file(SCHEMAS / f"{name}.avsc")
    assert all(field.nullable for field in said.fields)


def test_columns_of_the_shipped_order() -> None:
    """References and their sibling keywords are merged in the columns of the shipped order schema."""
    assert schema_file(str(SCHEMAS / "order.schema.json")).simpleString() == (
        "struct<id:bigint,customer:string,item:string,qty:bigint,state:string,"
        "inventory:struct<warehouse:string,reserved:bigint>,credit:struct<limit_ok:boolean,score:double>>"
    )


@pytest.mark.parametrize(
    ("data_type", "column"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("bytes", "binary"),
        ({"type": "fixed", "name": "F", "size": 3}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        (logical("bytes", "decimal", precision=38, scale=9), "decimal(38,9)"),
        (logical("string", "uuid"), "string"),
        (logical("int", "date"), "date"),
        (logical("long", "time-micros"), "string"),
        (logical("long", "timestamp-millis"), "timestamp"),
        (logical("long", "local-timestamp-micros"), "timestamp_ntz"),
        (logical("long", "timestamp-nanos"), "bigint"),
        (["null", {"type": "array", "items": ["null", "int"]}], "array<int>"),
        ({"type": "map", "values": avro("string") | {"name": "Inner"}}, "map<string,struct<v:string>>"),
        (["int", "null", "long"], "bigint"),
        (["float", "double"], "double"),
        (["string", logical("string", "uuid")], "string"),
    ],
)
def test_types_of_avro(tmp_path, data_type, column) -> None:
    """Each type of Avro has a type in Spark; a union of types that are one type in Spark has that type."""
    assert columns(tmp_path, "a.avsc", record(("id", "long"), ("v", data_type))) == f"struct<id:bigint,v:{column}>"


@pytest.mark.parametrize(
    ("data_type", "said"),
    [
        (["int", "string"], r"/v is one of several types \(int, string\)"),
        (["null"], "/v is the type null and no other"),
        (avro(logical("bytes", "decimal", precision=40)) | {"name": "Inner"}, "/v/v is a decimal of 40 digits"),
        ({"type": "array", "items": ["null", "Order"]}, "/v is the record Order inside of itself"),
    ],
)
def test_types_of_avro_that_spark_has_not(tmp_path, data_type, said) -> None:
    """A type of Avro without a type in Spark is an error with the file, the path and a remedy."""
    with pytest.raises(ConfigurationError, match=rf"a\.avsc: {said}.*: Spark has no type for it; give the columns"):
        columns(tmp_path, "a.avsc", avro(data_type))


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ({"type": "string", "format": "date-time"}, "string"),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": "number", "multipleOf": 1}, "double"),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "bigint"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"const": True}, "boolean"),
        ({"$ref": "#/$defs/name", "minLength": 1}, "string"),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "boolean"),
        ({"type": "array", "items": {"type": "integer"}}, "array<bigint>"),
        ({"items": {"oneOf": [{"$ref": "#/$defs/name"}]}}, "array<string>"),
        ({"additionalProperties": {"type": "number"}}, "map<string,double>"),
        ({"allOf": [{"properties": {"a": {"type": "string"}}}], "properties": {"b": {"type": "integer"}}},
         "struct<a:string,b:bigint>"),
    ],
)  # fmt: skip
def test_types_of_json_schema(tmp_path, schema, column) -> None:
    """All keywords of a JSON Schema for a value apply; null besides a type is ignored."""
    document = {"type": "object", "properties": {"v": schema}, "$defs": DEFS}
    assert columns(tmp_path, "a.schema.json", document) == f"struct<v:{column}>"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": ["integer", "string"]}, r"/v is one of several types \(integer, string\)"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, r"/v is one of several types \(oneOf\)"),
        ({}, "/v is of no type that its schema says"),
        ({"type": "null"}, "/v is of no type"),
        ({"type": "array"}, "/v is an array that does not say of what"),
        ({"type": "object"}, "/v is an object that does not say of what"),
        ({"properties": {"w": False}}, "/v/w is described by False"),
        ({"$ref": "other.json"}, r"/v is described by other\.json, which is not in the same document"),
        ({"$ref": "#/$defs/gone"}, "/v is described by #/.defs/gone, which is not there"),
        ({"$ref": "#/$defs/self"}, "/v/s is described by #/.defs/self inside of itself"),
    ],
)
def test_types_of_json_schema_that_spark_has_not(tmp_path, schema, said) -> None:
    """A type of JSON Schema without a type in Spark is an error with the file, the path and a remedy."""
    document = {"type": "object", "properties": {"v": schema}, "$defs": DEFS}
    with pytest.raises(ConfigurationError, match=rf"a\.json: {said}.*Spark has no type for it; give the columns"):
        columns(tmp_path, "a.json", document)


def test_files_that_are_no_schemas(tmp_path) -> None:
    """A file that is no schema is an error with its name and the problem."""
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "text.avsc").write_text("{}")
    (tmp_path / "list.json").write_text('{"type": "array", "items": {"type": "string"}}')
    for name, said in {
        "gone.avsc": r"the schema .*gone\.avsc cannot be read: No such file",
        "text.json": r"text\.json: not JSON",
        "text.avsc": r"text\.avsc: not an Avro schema",
        "list.json": "the record is array<string>, and no object with properties",
    }.items():
        with pytest.raises(ConfigurationError, match=said):
            schema_file(tmp_path / name)


def test_columns_come_from_the_registry() -> None:
    """The columns come from the latest version in the registry, under the default subject or that of the settings."""
    with schema_server() as registry:
        registry.register("orders.publish-value", record(("id", "int")))
        registry.register("orders.publish-value", record(("id", "long")))
        registry.register("named", {"type": "object", "properties": {"n": {"type": "number"}}}, "JSON")
        registry.register("other", {}, "PROTOBUF")
        config = {"schema_registry": {"url": registry.url}}
        assert registry_schema("orders", config).simpleString() == "struct<id:bigint>"
        assert registry_schema("orders", config | {"schema": {"subject": "named"}}).simpleString() == "struct<n:double>"
        with pytest.raises(ConfigurationError, match="subject other: the schema is of the type PROTOBUF"):
            registry_schema("orders", config | {"schema": {"subject": "other"}})
        with pytest.raises(ConfigurationError, match=r"has no subject prices\.publish-value"):
            registry_schema("prices", config)
        assert registry.written == []
    with pytest.raises(ConfigurationError, match="topic 'orders': its settings name no registry"):
        registry_schema("orders", None)


PATTERNS = {"OUT_OF_RANGE": OUT_OF_RANGE, "TINY_NUMBER": TINY_NUMBER} | {
    name: getattr(json_columns, name)
    for name in ("_COMMA", "_EXPONENT", "_IN_A_LOCALE", "_LONG_NUMBER", "_STRING", "_TIME_OF_DAY", "_WITH_EXPONENT")
}
"""The patterns that Java searches for in each record; Python's `re` takes the same steps."""


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("part", [",", "^", "0.12,-0.7,", "1,", "1", "'", "a ", "-,+", "\\", '\\"', "\\u0031"])
def test_a_long_text_is_searched_in_proportion_to_its_length(name, part) -> None:
    """Of a text twice as long a search takes about twice the time, also of commas, carets and arrays of numbers."""
    twins = {r"\p{Nd}": r"\d", r"\p{L}": "A-Za-z", r"\z": r"\Z"}
    pattern = re.compile(re.sub(r"\\(?:p\{\w+\}|z)", lambda match: twins[match[0]], PATTERNS[name]))

    def searched_s(count: int) -> float:
        text = '{"x": "' + part * (count // len(part)) + '\\\n", "h": "a5e12345"}'
        began_s = time.process_time()
        all(pattern.finditer(text))
        return time.process_time() - began_s

    assert min(searched_s(16_000) for _ in range(3)) < 3 * min(searched_s(8_000) for _ in range(3)) + 0.001
