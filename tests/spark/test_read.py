from __future__ import annotations

import datetime as dt
import json
from functools import partial

import pytest

from processor.errors import BrokerUnavailable, ConfigurationError, FilterError
from processor.kafka.admin.admin import Admin

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration import read_sow
from spark_integration.foundation.options import with_connection
from spark_integration.read import read_topics, topic_facts
from spark_integration.read.schemas.schema import schema_file
from tests.spark.history import History

pytestmark = [pytest.mark.spark, pytest.mark.broker]

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def history(bootstrap: str, unique: str) -> History:
    """A family of topics for one test, not yet created."""
    return History(unique, bootstrap)


def ms(moment: dt.datetime) -> str:
    """A moment as milliseconds, as in headers."""
    return str(round(moment.timestamp() * 1000))


def test_an_expired_record_is_left_out_and_others_have_their_end(spark, history) -> None:
    """Expired records are left out without a running worker, other rows have their end; an invalid time means never."""
    history.create("sow")
    headers = {"version": "3", "source": f"{history.name}.publish/0/7", "trace": b"\0\xff"}
    history.write("sow", ("over", "{}"), headers={"expires_at": ms(NOW - HOUR)})
    history.write("sow", ("on", "{}"), headers={"expires_at": ms(NOW + HOUR), **headers})
    history.write("sow", ("odd", "{}"), headers={"expires_at": "9223372036854775807"})
    history.write("sow", ("back", "{}"), headers={"expires_at": ms(NOW - HOUR)})
    history.write("sow", ("back", "{}"))
    table = read_sow(spark, history.name, options=history.options)
    rows = {row["_sow"]["sow_key"]: row["_sow"] for row in table.collect()}
    assert {key: row["expires_at"] and row["expires_at"].astimezone(dt.UTC) for key, row in rows.items()} == {
        "on": NOW + HOUR, "odd": None, "back": None
    }  # fmt: skip
    assert (rows["on"]["source"], rows["back"]["source"]) == (headers["source"], None)
    assert {header["key"]: bytes(header["value"]) for header in rows["on"]["headers"]}["trace"] == b"\0\xff"
    assert rows["back"]["headers"] is None
    flat = read_sow(spark, history.name, options=history.options, metadata="flat")
    assert flat.collect() == table.select("value", "_sow.*").collect()
    assert table.columns == ["value", "_sow"]
    bare = read_sow(spark, history.name, options=history.options, metadata="none")
    assert (bare.columns, bare.collect()) == (["value"], table.select("value").collect())
    assert (
        flat.dtypes
        == table.select("value", "_sow.*").dtypes
        == [
            ("value", "string"),
            ("sow_key", "string"),
            ("version", "bigint"),
            ("timestamp", "timestamp"),
            ("expires_at", "timestamp"),
            ("source", "string"),
            ("headers", "array<struct<key:string,value:binary>>"),
            ("partition", "int"),
            ("offset", "bigint"),
        ]
    )


def test_a_filter_is_of_the_last_state_of_each_key(spark, history) -> None:
    """A filter applies to the last state of each key, with and without columns; an invalid one is refused."""
    history.create("sow")
    for key, qty in ((1, 50), (1, 5), (2, 50), (3, 60)):
        history.write("sow", (str(key), json.dumps({"id": key, "qty": qty})))
    history.write("sow", ("3", None))

    def matching(text, schema):
        table = read_sow(spark, history.name, schema, options=history.options, filter=text)
        return sorted(row["sow_key"] for row in table.select("_sow.sow_key").collect())

    assert matching("/qty > 20", None) == ["2"]
    assert matching("/qty < 20", "id LONG") == ["1"]
    assert matching("SOW_KEY() = '2' AND MESSAGE_SIZE() = 20 AND TOPIC_NAME() = '" + history.name + "'", None) == ["2"]
    with pytest.raises(FilterError, match="column 7"):
        matching("/qty >", None)


@pytest.mark.long
def test_columns_are_inferred_from_the_last_records(spark, history, monkeypatch) -> None:
    """Columns are inferred from the last committed records, or the complete topic; Kafka is asked once for a table."""
    monkeypatch.setattr(read_topics, "SAMPLE_OFFSETS", 1)
    history.create("sow", 2)
    history.write("sow", ("1", '{"old":1,"b":"x"}'), at=NOW - 3 * HOUR)
    history.write("sow", ("1", '{"b":"x","a":{"y":1.5}}'), at=NOW - 2 * HOUR)
    history.write("sow", ("2", '{"a":{"z":[true]}}'), at=NOW - 2 * HOUR, partition=1)
    history.write("sow", ("1", None), ("2", None), at=NOW - HOUR)
    history.write("sow", ("2", None), at=NOW - HOUR, partition=1)

    asked = []

    def topic_facts_noted(settings, role, options):
        asked.append(role)
        return topic_facts.topic_facts(settings, role, options)

    monkeypatch.setattr(read_topics, "topic_facts", topic_facts_noted)

    def inferred(at):
        table = read_sow(spark, history.name, "infer", options=history.options, at=at)
        return table.drop("_sow")

    late = inferred(NOW - HOUR)
    assert asked == ["sow"]
    assert late.schema.simpleString() == "struct<a:struct<y:double,z:array<boolean>>,b:string>"
    assert sorted(map(repr, late.collect())) == [
        "Row(a=Row(y=1.5, z=None), b='x')",
        "Row(a=Row(y=None, z=[True]), b=None)",
    ]
    assert inferred(None).schema.simpleString() == (
        "struct<a:struct<y:double,z:array<boolean>>,b:string,old:bigint>"
    )  # fmt: skip


def test_columns_cannot_be_inferred_of_nothing(spark, history) -> None:
    """Columns cannot be inferred from an empty topic, or from a record that is no JSON."""
    history.create("sow")
    with pytest.raises(ConfigurationError, match=r"schema='infer': .*\.sow has no record with fields to look at"):
        read_sow(spark, history.name, "infer", options=history.options)
    history.write("sow", ("1", "{"))
    with pytest.raises(ConfigurationError, match=r"\.sow has a record that is no JSON object; give a schema"):
        read_sow(spark, history.name, "infer", options=history.options)


def test_settings_name_the_servers_where_options_do_not(spark, history) -> None:
    """The servers of a settings file are used without options; credentials of librdkafka in it are refused."""
    from processor.config import Config

    history.create("sow")
    history.write("sow", ("1", '{"id":1,"customer":"Ann"}'))
    config = Config(kafka=history.client, topics={history.name: {}})
    columns = schema_file("schemas/order.avsc")
    (row,) = read_sow(spark, history.name, columns, config=config).collect()
    assert (row["id"], row["customer"], row["inventory"]) == (1, "Ann", None)

    secured = history.client | {"security.protocol": "ssl"}
    assert with_connection(None, secured) == {**history.options, "kafka.security.protocol": "SSL"}
    assert with_connection({**history.options, "kafka.security.protocol": "PLAINTEXT"}, secured) == {
        **history.options,
        "kafka.security.protocol": "PLAINTEXT",
    }


def test_a_kafka_that_does_not_answer_is_an_error(spark, monkeypatch) -> None:
    """A Kafka that does not answer as long as a command waits is an error before Spark reads."""
    monkeypatch.setattr(topic_facts, "Admin", partial(Admin, connect_timeout_s=0.3))
    with pytest.raises(BrokerUnavailable, match=r"looking at the cluster at 127\.0\.0\.1:1"):
        read_sow(spark, "orders", options={"kafka.bootstrap.servers": "127.0.0.1:1"})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kafka.request.timeout.ms": "soon"}, r"the options that begin with 'kafka\.'.*socket\.timeout\.ms"),
        (
            {
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": "PlainLoginModule required username=u password=hunter2",
            },
            r"'sasl\.jaas\.config' cannot be translated",
        ),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/trust.jks"},
            r"'ssl\.truststore\.location' cannot be translated.*`keytool -list -rfc",
        ),
    ],
)
def test_options_for_javas_client_alone_are_named_without_their_secrets(spark, history, options, error) -> None:
    """A table needs settings that librdkafka has too; errors have the name of the setting, and not its value."""
    with pytest.raises(ConfigurationError, match=error) as caught:
        read_sow(spark, history.name, options=history.options | options)
    assert "hunter2" not in str(caught.value)
