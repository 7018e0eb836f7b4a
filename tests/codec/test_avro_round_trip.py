"""Every value of a schema is read back as it was written: records, deltas, branches of unions, logical types."""

import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processor.codec.avro.delta import delta_schema_text
from processor.codec.avro.schema import Schema
from tests.codec.avro_world import SCHEMAS, World, file_codec, values

QUICK = settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# Making a registry's client costs more than all the rest.
_DIRECTORY = tempfile.TemporaryDirectory(prefix="sowstream-avro-")
FILES = Path(_DIRECTORY.name)


@st.composite
def schema_and_values(draw, *, partial=False):
    """A schema with some of its records or deltas."""
    schema = draw(SCHEMAS)
    parsed = Schema(json.dumps(schema))
    return schema, draw(st.lists(values(parsed, parsed.root, partial=partial), min_size=1, max_size=4))


def shown(value):
    """A value's text with types and branches, members sorted, since their order is no part of the value."""
    if isinstance(value, dict):
        return type(value).__name__ + str([f"{name!r}: {shown(value[name])}" for name in sorted(value)])
    return str([shown(item) for item in value]) if type(value) is list else repr(value)


@QUICK
@given(schema_and_values())
def test_a_record_of_any_schema_is_read_back_as_written(given_both):
    """A record of any schema is read back with the same values and types, and is written again as the same bytes."""
    schema, records = given_both
    codec = file_codec(schema, FILES)
    for record in records:
        data = codec.encode(record)
        assert shown(codec.decode(data)) == shown(record)
        assert shown(codec.decode_own(data)) == shown(record)
        assert codec.encode(codec.decode(data)) == data
        whole = codec.decode_own(data)
        codec.complete(whole)
        assert shown(whole) == shown(record)


@QUICK
@given(schema_and_values(partial=True))
def test_a_delta_of_any_schema_is_read_back_as_written(given_both):
    """A delta of any schema is read back with exactly its fields, nulls included."""
    schema, deltas = given_both
    codec = file_codec(schema, FILES)
    for delta in deltas:
        data, headers = codec.encode_delta(delta)
        assert shown(codec.decode_command(data, headers, is_delta=True)) == shown(delta)


@QUICK
@given(SCHEMAS)
def test_every_field_of_a_derived_schema_can_be_left_out(schema):
    """Every field of a derived delta schema has a default, so deltas may be empty, and older ones can be read."""
    derived = json.loads(delta_schema_text(Schema(json.dumps(schema))))
    assert all(field["type"][0] == "null" and field["default"] is None for field in derived["fields"])
    codec = file_codec(schema, FILES)
    assert codec.decode_command(*codec.encode_delta({}), is_delta=True) == {}


@settings(QUICK, max_examples=20)
@given(schema_and_values())
def test_confluents_deserializer_reads_our_messages(given_both):
    """Confluent's deserializer reads the frame, the schema id and the body that the codec writes."""
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    schema, records = given_both
    world = World(schema)
    codec = world.codec()
    deserialize = AvroDeserializer(world.client, return_record_name=True)
    for record in records:
        data = codec.encode(record)
        assert deserialize(data, None).keys() == record.keys()
