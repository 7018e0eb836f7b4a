"""Whatever a schema allows comes back as it was: records, deltas, branches of unions, logical types."""

import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processor.codec.avro.delta_schema import delta_schema_text
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
    """A schema, and records or deltas of it."""
    schema = draw(SCHEMAS)
    parsed = Schema(json.dumps(schema))
    return schema, draw(st.lists(values(parsed, parsed.root, partial=partial), min_size=1, max_size=4))


def shown(value):
    """A value's text, types and branches included, members sorted: their order is no part of it."""
    if isinstance(value, dict):
        return type(value).__name__ + str([f"{name!r}: {shown(value[name])}" for name in sorted(value)])
    return str([shown(item) for item in value]) if type(value) is list else repr(value)


@QUICK
@given(schema_and_values())
def test_a_record_of_any_schema_comes_back_as_it_was(given_both):
    """Written and read, a value is the same, of the same types, and written again it is the same bytes."""
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
def test_a_delta_of_any_schema_comes_back_as_it_was(given_both):
    """By the derived schema and header `fields`: neither a field more nor one less, null or not."""
    schema, deltas = given_both
    codec = file_codec(schema, FILES)
    for delta in deltas:
        data, headers = codec.encode_delta(delta)
        assert shown(codec.decode_command(data, headers, is_delta=True)) == shown(delta)


@QUICK
@given(SCHEMAS)
def test_every_field_of_a_derived_schema_can_be_left_out(schema):
    """An empty delta can be written, and a later schema of deltas can read an earlier one's: all have defaults."""
    derived = json.loads(delta_schema_text(Schema(json.dumps(schema))))
    assert all(field["type"][0] == "null" and field["default"] is None for field in derived["fields"])
    codec = file_codec(schema, FILES)
    assert codec.decode_command(*codec.encode_delta({}), is_delta=True) == {}


@settings(QUICK, max_examples=20)
@given(schema_and_values())
def test_confluents_deserializer_reads_what_we_write(given_both):
    """Frame, id and bytes are what other clients know."""
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    schema, records = given_both
    world = World(schema)
    codec = world.codec()
    deserialize = AvroDeserializer(world.client, return_record_name=True)
    for record in records:
        data = codec.encode(record)
        assert deserialize(data, None).keys() == record.keys()
