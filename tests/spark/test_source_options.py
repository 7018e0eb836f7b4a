"""The options of a read, and the partitions that its keys need."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest

from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pyspark.sql.types import StructType

from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.batch.result import Merged
from spark_integration.read.metadata_columns import METADATA
from spark_integration.read.source.latest_rows import refuse_metadata
from spark_integration.read.source.source_options import parse_source_options
from spark_integration.read.table_part import key_texts, partitions_with

RIGHT = {"topic": "orders", "kafka.bootstrap.servers": "localhost:9092"}


def test_options_are_read_in_any_case() -> None:
    """Names of options may have any case, as in Spark; those with prefix `kafka.` go to librdkafka without it."""
    given = {
        "TOPIC": "orders",
        "Kafka.bootstrap.servers": "a:1",
        "maxbytesperpartition": "10",
        "at": "2026-01-31T12:00Z",
    }
    found = parse_source_options(given | {"kafka.sasl.mechanism": "PLAIN"})
    assert found.kafka == {"bootstrap.servers": "a:1", "sasl.mechanism": "PLAIN"}
    assert (found.settings.name, found.max_bytes_per_partition) == ("orders", 10)
    assert found.at == dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def test_load_takes_the_name_of_the_topic() -> None:
    """`load("orders")` reads the topic, as `option("topic", "orders")` does; the two may say the same."""
    servers = {"kafka.bootstrap.servers": "localhost:9092"}
    assert parse_source_options(servers | {"path": "orders"}).settings.name == "orders"
    assert parse_source_options(RIGHT | {"path": "orders"}).settings.name == "orders"


def test_ending_offsets_are_as_sparks_own() -> None:
    """Option `endingOffsets` has offsets by topic and partition, as in Spark; `latest` is the current end."""
    assert parse_source_options(RIGHT | {"endingOffsets": '{"orders.sow": {"0": 5, "1": 7}}'}).at == {0: 5, 1: 7}
    assert parse_source_options(RIGHT | {"endingOffsets": "latest"}).at is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topic": ""}, "option 'topic' is ''; give the name of a family"),
        ({"topic": "orders.sow"}, r"'\.sow' is added"),
        ({"kafka.bootstrap.servers": ""}, "no option 'kafka.bootstrap.servers'"),
        ({"path": "trades"}, r"option 'topic' is 'orders', and load\(\) was given another name; give it once"),
        ({"filtr": "/a = 1"}, "there is no option 'filtr'; did you mean 'filter'?"),
        ({"startingOffsets": "earliest"}, "there is no option 'startingOffsets'; did you mean 'endingOffsets'?"),
        ({"kafka.sasl.jaas.config": "x"}, "the Kafka setting 'sasl.jaas.config' cannot be translated for librdkafka"),
        ({"kafka.isolation.level": "read_uncommitted"}, "cannot be given: it is always read_committed"),
        ({"filter": "/a = "}, "line 1, column 6"),
        ({"schema": "infer"}, "use read_sow, which can infer one"),
        ({"at": "yesterday"}, "option 'at' is 'yesterday'; give a moment as ISO 8601"),
        ({"at": "2026-01-31T12:00Z", "endingOffsets": "latest"}, "both say where the table ends"),
        ({"endingOffsets": '{"0": 5}'}, "option 'endingOffsets' is .*; give 'latest', or the offset"),
        ({"endingOffsets": '{"other.sow": {"0": 5}}'}, "option 'endingOffsets' is .*; give 'latest', or the offset"),
        ({"allowCompacted": "yes"}, "option 'allowCompacted' is 'yes'; give 'true' or 'false'"),
        ({"metadata": "nested"}, "option 'metadata' is 'nested'; give 'struct', 'flat' or 'none'"),
        ({"metadata": "none", "onMisfit": "column"}, "a misfit is metadata"),
        ({"onMisfit": "skip"}, "option 'onMisfit' is 'skip'; give 'fail' or 'column'"),
        ({"keys": "7"}, "option 'keys' is '7'; give a JSON array of keys"),
        ({"maxBytesPerPartition": "1g"}, "option 'maxBytesPerPartition' is '1g'; give a number of bytes"),
        ({"config": "/nowhere/sowstream.yaml"}, "/nowhere/sowstream.yaml"),
    ],
)
def test_wrong_options_are_refused(change, said) -> None:
    """Each wrong option is an error with its name and a remedy."""
    with pytest.raises(ConfigurationError, match=said):
        parse_source_options(RIGHT | change)


def test_no_secret_is_in_an_error() -> None:
    """The error for a refused option does not contain its value."""
    with pytest.raises(ConfigurationError) as told:
        parse_source_options(RIGHT | {"kafka.sasl.jaas.config": "hunter2"})
    assert "hunter2" not in str(told.value)


def test_no_secret_is_in_a_repr() -> None:
    """The `repr` of parsed options, and of a merge's result with its settings, has no credentials."""
    mapping = {"kafka": {"sasl.password": "hunter2"}, "schema_registry": {"basic.auth.user.info": "u:hunter2"}}
    settings = topic_settings("orders", mapping | {"enrich": [{"use": "e", "settings": {"token": "hunter2"}}]})
    merged = Merged(settings, None, None, Counter(), Counter(), None, 0, has_deltas=False, has_base=False)
    for shown in (merged, parse_source_options(RIGHT | {"kafka.sasl.password": "hunter2"})):
        assert "hunter2" not in repr(shown)
        assert "name='orders'" in repr(shown)


@pytest.mark.parametrize("record", [[("Version", "long")], [("partition", "string")]])
def test_a_field_called_as_metadata_is_refused(record) -> None:
    """A field with the name of a metadata column is refused, as it would hide one of the two."""
    schema = StructType()
    for name, kind in record:
        schema.add(name, kind)
    with pytest.raises(ConfigurationError, match="has the name of a metadata column"):
        refuse_metadata(StructType([*schema.fields, *METADATA.fields]), METADATA.fields)


def test_keys_have_the_text_of_workers() -> None:
    """A key is a value, or a list with one for each key field; the texts are those of the workers, once each."""
    keys = ["7", 7, True, ["a"], ("ø", 1), ['"', False]]
    assert key_texts(keys) == ["7", "true", "a", '["ø","1"]', '["\\"","false"]']


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("7", r"keys='7' is one text; give a list of keys: keys=\['7'\]"),
        ([], "keys names no key"),
        ([1.5], "keys has 1.5; a key is a string, a whole number or a boolean"),
        ([None], "keys has None"),
        ([["a", None]], "keys has \\['a', None\\]"),
    ],
)
def test_keys_that_no_record_has_are_refused(keys, said) -> None:
    """A value that is no key, a single text and an empty list are errors."""
    with pytest.raises(ConfigurationError, match=said):
        key_texts(keys)


def test_keys_of_another_format_are_refused() -> None:
    """Keys that are no texts on the topic cannot be looked up by text."""
    with pytest.raises(ConfigurationError, match="has key_format 'json'"):
        partitions_with(["7"], 4, topic_settings("orders", {"key": ["/id"], "key_format": "json"}))
