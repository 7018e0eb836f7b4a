"""The schema registry's client: its cache, its retries, and the secrets that it never logs."""

import http.server
import json
import threading
from contextlib import contextmanager

import pytest
from pydantic import ValidationError

from processor.codec.avro.delta import whole_schema_text
from processor.codec.avro.schema import Schema
from processor.codec.contract import CodecOptions
from processor.codec.schema_registry import schemas
from processor.codec.schema_registry.schemas import Registry, lost_fields
from processor.codec.schema_registry.topic_schema import topic_schema
from processor.config import SchemaConfig
from processor.errors import ConfigurationError, RecordRejected, Stop
from tests.codec.avro_world import World, plain, record

TEXT = json.dumps(record(("id", "long")))
SECRETS = {"basic.auth.user.info": "alice:hunter2"}


@contextmanager
def answering(*answers, before=lambda path: None):
    """A registry on the loopback interface that gives these answers in turn, and the last one forever.

    An answer is a status and JSON. `before` is called with the path of each request and may block.
    """
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            before(self.path)
            asked.append(self.path)
            status, body = answers[min(len(asked), len(answers)) - 1]
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815 - the name that the server calls

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def registry(url, **settings):
    """A registry client, closed at the end."""
    client = Registry({"url": url, **settings})
    try:
        yield client
    finally:
        client._client.close()


@pytest.fixture
def impatient(monkeypatch):
    """Let the client give up soon."""
    monkeypatch.setattr(schemas, "ANSWER_TIMEOUT_S", 0.3)


def test_a_schema_is_asked_for_once():
    """A schema is fetched once, since the meaning of an id never changes."""
    with answering((200, {"schema": TEXT})) as (url, asked), registry(url) as client:
        assert client.schema(7) == client.schema(7)
        assert json.loads(client.schema(7).text) == json.loads(TEXT)
        assert len(asked) == 1


def test_a_missing_schema_is_requested_again_after_a_while(monkeypatch):
    """A missing schema is requested again only after a while, not for each of its records."""
    missing = (404, {"error_code": 40403, "message": "Schema not found"})
    with answering(missing, (200, {"schema": TEXT})) as (url, asked), registry(url) as client:
        for _ in range(3):
            with pytest.raises(RecordRejected, match="schema_not_found: the registry has no schema 7"):
                client.schema(7)
        assert len(asked) == 1
        monkeypatch.setattr(schemas.time, "monotonic", lambda now=schemas.time.monotonic: now() + schemas.MISSING_TTL_S)
        assert client.schema(7).text == TEXT


def test_the_cache_of_missing_schemas_is_bounded(monkeypatch):
    """The cache of missing schema ids is bounded, since a fuzzed topic contains billions of them."""
    monkeypatch.setattr(schemas, "MISSING_MAX", 10)
    client = Registry(World().settings)
    for schema_id in range(50, 100):
        with pytest.raises(RecordRejected):
            client.schema(schema_id)
    assert len(client._missing) <= 10


def test_a_registry_in_trouble_is_asked_again():
    """A failing registry is asked again: its restart is no record's fault."""
    trouble = (503, {"error_code": 50003, "message": "leader not known"})
    with answering(trouble, trouble, (200, {"schema": TEXT})) as (url, asked), registry(url) as client:
        assert client.schema(7).text == TEXT
        assert len(asked) == 3


def test_a_registry_that_never_answers_stops_the_worker_and_no_secret_is_shown(impatient):
    """A registry that never answers stops the worker with its address, without credentials, and the remedy."""
    with registry("http://alice:hunter2@127.0.0.1:9/path") as client, pytest.raises(Stop) as stopped:
        client.schema(7)
    assert "http://127.0.0.1:9/path did not answer" in str(stopped.value)
    assert "start it" in str(stopped.value)
    assert "hunter2" not in str(stopped.value)


@pytest.mark.parametrize("addresses", ["{}", "http://127.0.0.1:9,{}", "{}, {}"])
def test_credentials_of_an_address_are_sent_and_not_logged(caplog, addresses):
    """Credentials in any address are sent and never logged, although the HTTP library logs every address."""
    caplog.set_level("DEBUG")
    with answering((200, {"schema": TEXT})) as (url, _):
        address = url.replace("//", "//alice:hunter%402@")
        with registry(addresses.format(address, address)) as client:
            client.schema(7)
            assert client._client._rest_client.auth == ("alice", "hunter@2")
    assert caplog.text
    assert "hunter" not in caplog.text


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_setting(status):
    """A refusal is a configuration error that names the setting and does not repeat the credentials."""
    with (
        answering((status, {"error_code": status, "message": "no"})) as (url, _),
        registry(url, **SECRETS) as client,
        pytest.raises(ConfigurationError, match=r"refuses us .*basic\.auth\.user\.info") as refused,
    ):
        client.schema(7)
    assert "hunter2" not in str(refused.value)


def test_an_incompatible_schema_is_a_configuration_error_with_the_registrys_words():
    """An incompatible schema is a configuration error with the registry's words, not a crash at the first record."""
    with (
        answering(
            (404, {"error_code": 40401, "message": "?"}), (409, {"error_code": 409, "message": "READER_FIELD_MISSING"})
        ) as (url, _),
        registry(url) as client,
        pytest.raises(ConfigurationError, match="READER_FIELD_MISSING; where it is about compatibility"),
    ):
        client.register("orders.sow-value", TEXT)


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "ftp://alice:hunter2@host"},
        {"url": "http://host", "basic.auth.user.info": "hunter2"},
        {"url": "http://alice:hunter2@host", **SECRETS},
        {"url": "http://alice:hunter2@a,http://alice:hunter3@b"},
        {"url": "http://host", "tiemout": "1", **SECRETS},
        {"url": "http://host", "timeout": "hunter2"},
    ],
)
def test_settings_that_cannot_be_used_are_a_configuration_error_without_their_values(settings):
    """Unusable settings are a configuration error without their values, which may be secrets."""
    with pytest.raises(ConfigurationError, match="schema_registry") as refused:
        Registry(settings)
    assert "hunter2" not in str(refused.value)


def test_a_schema_comes_with_those_it_refers_to():
    """A schema is loaded together with the schemas that it refers to."""
    from confluent_kafka.schema_registry import Schema, SchemaReference

    world = World()
    world.register(record(("zip", "string"), name="Address"), "address")
    text = json.dumps(record(("id", "long"), ("home", "Address")))
    world.client.register_schema(
        "orders.publish-value", Schema(text, "AVRO", [SchemaReference("Address", "address", 1)])
    )
    codec = world.codec()
    value = {"id": 1, "home": {"zip": "9"}}
    assert codec.decode(codec.encode(value)) == value
    assert codec.decode_command(*codec.encode_delta({"home": {"zip": "8"}}), is_delta=True) == {"home": {"zip": "8"}}


def test_a_schema_is_exported_with_those_it_refers_to():
    """A schema is exported with those it refers to as one text that needs no registry and describes the same bytes."""
    address = record(("zip", "string"), name="Address")
    text = json.dumps(record(("id", "long"), ("home", "Address"), ("work", ["null", "Address"], None)))
    alone = json.loads(whole_schema_text(Schema(text, [json.dumps(address)])))
    value = {"id": 1, "home": {"zip": "9"}, "work": {"zip": "8"}}
    inside = record(("id", "long"), ("home", address), ("work", ["null", "Address"], None))
    assert plain(alone, value) == plain(inside, value)


def test_the_latest_schema_of_a_subject_may_be_of_json():
    """The latest schema of a subject is returned if it is a JSON schema, and None for another type."""
    from confluent_kafka.schema_registry import Schema as Registered

    world = World(record(("id", "long")))
    world.client.register_schema("other", Registered('{"type":"object"}', "JSON"))
    registry = Registry(world.settings)
    assert registry.json_of_subject("other") == '{"type":"object"}'
    assert registry.json_of_subject("orders.publish-value") is None
    with pytest.raises(ConfigurationError, match="has no subject nobodys"):
        registry.json_of_subject("nobodys")


def test_a_schema_of_another_type_is_a_schema_mismatch():
    """A schema id of a JSON or protobuf schema is a schema mismatch."""
    from confluent_kafka.schema_registry import Schema

    world = World()
    schema_id = world.client.register_schema("other", Schema("{}", "JSON"))
    with pytest.raises(RecordRejected, match="schema_mismatch: the schema is of the type JSON"):
        Registry(world.settings).schema(schema_id)


def test_a_version_without_fields_of_the_one_before_is_logged(caplog):
    """A delta's schema that became the latest version of the records' subject is named, with the fields it lacks."""
    whole = json.dumps(record(("id", "long"), ("item", "string"), ("px", "double")))
    part = json.dumps(record(("id", "long"), ("px", "double")))
    with registry("mock://narrowing") as client:
        client.register("orders.publish-value", whole)
        client.of_subject("orders.publish-value")
        assert not caplog.messages
        client.register("orders.publish-value", part)
        client.of_subject("orders.publish-value")
    [line] = caplog.messages
    assert "subject orders.publish-value: version 2 lacks item of version 1" in line
    assert "register that one under another subject, and delete this version" in line


def test_a_version_is_read_where_the_settings_name_one(caplog):
    """A version of the settings stays the schema of the records, also when others are registered after it."""
    whole = json.dumps(record(("id", "long"), ("item", "string")))
    with registry("mock://pinned") as client:
        client.register("orders.publish-value", whole)
        client.register("orders.publish-value", json.dumps(record(("id", "long"))))
        assert client.of_subject("orders.publish-value", 1).text == whole
        assert not caplog.messages
        with pytest.raises(ConfigurationError, match="has no version 7 of subject orders"):
            client.of_subject("orders.publish-value", 7)
        options = CodecOptions(topic="orders", schema=SchemaConfig(subject="orders.publish-value", version=1))
        found, place = topic_schema(options, client, "avro", "an Avro schema (.avsc)")
    assert (found.text, place) == (whole, "subject orders.publish-value")


def test_a_version_without_a_subject_is_refused():
    """A version says nothing about a file."""
    with pytest.raises(ValidationError, match="version is of a registry's subject, and file says what the schema is"):
        SchemaConfig(file="trade.avsc", version=2)


def test_a_renamed_field_is_not_lost():
    """A field that stands in the aliases of another one is still read."""
    former, latest = record(("id", "long"), ("px", "double")), record(("id", "long"), ("price", "double"))
    assert lost_fields(json.dumps(former), json.dumps(latest)) == ["px"]
    latest["fields"][1]["aliases"] = ["px"]
    assert lost_fields(json.dumps(former), json.dumps(latest)) == []
    assert lost_fields("7", '"long"') == []


def test_an_address_without_a_scheme_is_corrected():
    """The message shows what to write."""
    with pytest.raises(ConfigurationError, match=r"schema_registry.url has no scheme; write .*http://HOST:8081"):
        Registry({"url": "registry:8081"})
