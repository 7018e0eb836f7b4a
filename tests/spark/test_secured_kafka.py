"""Spark's functions on a broker with TLS, SCRAM and client certificates, with settings in either dialect."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from processor.config import Config
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration import hand_over, merge_batch, merge_stream, publish_deltas, read_sow, stream_deltas
from spark_integration.foundation.kafka_security import LoginModule
from tests.spark.secured_broker import PASSWORD, STORE_PASSWORD, USER, SecuredBroker, secured_broker

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1800)]

SCHEMA = "id LONG, qty LONG"


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[SecuredBroker]:
    """A broker with TLS and passwords."""
    with pytest.MonkeyPatch.context() as patch:
        yield from secured_broker(tmp_path_factory.mktemp("tls"), patch)


def librdkafka(broker: SecuredBroker, **changes: str) -> dict[str, str]:
    """Librdkafka's settings for TLS and SCRAM."""
    return {
        "bootstrap.servers": broker.scram,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(broker.files / "ca.pem"),
    } | changes


def java(broker: SecuredBroker) -> dict[str, str]:
    """Java's settings of the same, as options of Spark."""
    module = LoginModule(
        "org.apache.kafka.common.security.scram.ScramLoginModule", {"username": USER, "password": PASSWORD}
    )
    return {
        "kafka.bootstrap.servers": broker.scram,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": module.text(),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(broker.files / "ca.pem"),
    }


def _config(broker: SecuredBroker, name: str, kafka: dict[str, str]) -> Config:
    return Config(kafka=kafka, topics={name: {"partitions": 2, "key": ["/id"]}})


@pytest.mark.parametrize("dialect", ["the section kafka", "java", "librdkafka"])
def test_every_function_logs_in_with_settings_in_either_dialect(
    spark, broker: SecuredBroker, unique: str, tmp_path, dialect
) -> None:
    """Publishing, batch merge, hand-over, reading, streaming and the data source work with one set of settings."""
    secured = dialect == "the section kafka"
    config = _config(broker, unique, librdkafka(broker) if secured else {"bootstrap.servers": "127.0.0.1:1"})
    options = {"the section kafka": {}, "java": java(broker), "librdkafka": _prefixed(librdkafka(broker))}[dialect]
    admin = Admin({"bootstrap.servers": broker.bootstrap})
    admin.create(specs(config))

    rows = spark.createDataFrame([(1, 5), (2, 6)], "id long, qty long")
    publish_deltas(rows, unique, ["id"], ["qty"], config=config, options=options)
    with merge_batch(spark, unique, config=config, options=options, deltas=True) as merged:
        hand_over(merged, options=options, deltas=True)
    table = read_sow(spark, unique, SCHEMA, config=config, options=options)
    assert sorted((row.id, row.qty) for row in table.collect()) == [(1, 5), (2, 6)]
    deltas = stream_deltas(spark, unique, SCHEMA, config=config, options=options | {"startingOffsets": "earliest"})
    query = deltas.writeStream.format("memory").queryName(unique).trigger(availableNow=True).start()
    query.awaitTermination()
    assert spark.table(unique).count() == 2
    file = tmp_path / "sowstream.yaml"
    file.write_text(f"topics: {{{unique}: {{key: [/id]}}}}")
    known = _prefixed(config.kafka) | options
    source = spark.read.format("sow").options(**known, topic=unique, config=str(file), schema=SCHEMA)
    assert source.load().count() == 2

    query = _restarted(spark, unique, config, options, tmp_path, rows)
    assert {(row.id, row["_sow"].version) for row in query.collect()} == {(1, 2), (2, 1)}


def _restarted(spark, name: str, config: Config, options, tmp_path, rows):
    """The table after the streaming merge has merged one more delta."""
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    writer = merge_stream(spark, name, config=config, options=options)
    checkpoint = str(tmp_path / "checkpoint")
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="1 second").start()
    try:
        query.processAllAvailable()
        publish_deltas(
            rows.where("id = 1").selectExpr("id", "9 AS qty"), name, ["id"], ["qty"], config=config, options=options
        )
        query.processAllAvailable()
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    return read_sow(spark, name, SCHEMA, config=config, options=options)


@pytest.mark.parametrize("form", ["pem files", "pem texts", "pkcs12", "java's pem file"])
def test_client_certificates_in_every_form(spark, broker: SecuredBroker, unique: str, form) -> None:
    """A certificate and its key, as PEM files, texts or PKCS#12, serve Spark's client and librdkafka alike."""
    files = broker.files
    own = {
        "pem files": {
            "ssl.ca.location": str(files / "ca.pem"),
            "ssl.certificate.location": str(files / "client.pem"),
            "ssl.key.location": str(files / "client.key"),
        },
        "pem texts": {
            "ssl.ca.pem": (files / "ca.pem").read_text(),
            "ssl.certificate.pem": (files / "client.pem").read_text(),
            "ssl.key.pem": (files / "client.key").read_text(),
        },
        "pkcs12": {
            "ssl.ca.location": str(files / "ca.pem"),
            "ssl.keystore.location": str(files / "client.p12"),
            "ssl.keystore.password": STORE_PASSWORD,
        },
        "java's pem file": {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(files / "ca.pem"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(files / "client.both.pem"),
        },
    }[form]
    options = {"bootstrap.servers": broker.mutual, "security.protocol": "SSL"} | own
    config = _config(broker, unique, {"bootstrap.servers": broker.bootstrap})
    Admin(config.kafka).create(specs(config))
    publish_deltas(spark.createDataFrame([(1, 5)], SCHEMA), unique, ["id"], ["qty"], options=options)
    with merge_batch(spark, unique, config=config, options=options) as merged:
        hand_over(merged, options=options)
    assert [row.qty for row in read_sow(spark, unique, SCHEMA, options=options).collect()] == [5]
    source = spark.read.format("sow").options(**_prefixed(options), topic=unique, schema=SCHEMA)
    assert [row.qty for row in source.load().collect()] == [5]


def test_a_wrong_password_is_an_error_without_the_password(spark, broker: SecuredBroker, unique: str, caplog) -> None:
    """A login that the broker refuses is an error of each client; neither it nor the log has the password."""
    config = _config(broker, unique, {"bootstrap.servers": broker.bootstrap})
    Admin(config.kafka).create(specs(config))
    wrong = _prefixed(librdkafka(broker, **{"sasl.password": f"wrong{PASSWORD}"}))
    rows = spark.createDataFrame([(1, 5)], SCHEMA)
    with caplog.at_level(logging.DEBUG):
        errors = []
        for call in (
            lambda: read_sow(spark, unique, SCHEMA, options=wrong),
            lambda: merge_batch(spark, unique, config=config, options=wrong),
            lambda: publish_deltas(rows, unique, ["id"], ["qty"], options=wrong | {"kafka.max.block.ms": "5000"}),
            lambda: spark.read.format("sow").options(**wrong, topic=unique, schema=SCHEMA).load().count(),
        ):
            with pytest.raises(Exception) as told:  # noqa: PT011 - the class depends on the way of the error
                call()
            errors.append(str(told.value))
    assert "authentication" in errors[0].lower()
    # PySpark's own bridge to Java logs each command at this level, with the options of the caller.
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("py4j")]
    assert all("hunter" not in text for text in [*errors, *logged])


def test_a_plan_shows_no_secret(spark, broker: SecuredBroker, unique: str) -> None:
    """The plan of a published table, as Spark's pages show it, has neither password nor key."""
    config = _config(broker, unique, {"bootstrap.servers": broker.bootstrap})
    Admin(config.kafka).create(specs(config))
    files = {"ssl.certificate.location": "client.pem", "ssl.key.location": "client.key"}
    own = librdkafka(broker) | {name: str(broker.files / file) for name, file in files.items()}
    store = spark._jsparkSession.sharedState().statusStore()
    before = store.executionsCount()  # Those of a key that was given as a text are among them.
    publish_deltas(spark.createDataFrame([(1, 5)], SCHEMA), unique, ["id"], ["qty"], options=_prefixed(own))
    shown = [store.executionsList().apply(number) for number in range(before, store.executionsCount())]
    texts = "".join(
        f"{execution}{store.execution(execution.executionId()).get().physicalPlanDescription()}" for execution in shown
    )
    assert "SaveIntoDataSourceCommand" in texts
    assert "hunter" not in texts
    assert "PRIVATE" not in texts


def _prefixed(kafka: dict[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": text for name, text in kafka.items()}
