"""The topic directory: what is written to it, read from it, and compared with the settings."""

import base64
import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from processor.config import Config, SchemaConfig
from processor.errors import ConfigurationError
from processor.installation.directory_comparison import contradictions, differences, revise
from processor.installation.topic_directory import DirectoryEntries, described_topics
from processor.wire.topic_description import Description, NewerFormat, Unreadable, describe

KAFKA = {"bootstrap.servers": "h:9092"}
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'


def settings(tmp_path: Path) -> Config:
    """Settings with one topic of each kind that a description must support."""
    avro, protobuf = tmp_path / "r.avsc", tmp_path / "r.desc"
    avro.write_text(AVRO)
    protobuf.write_bytes(b"\x0a\x02hi\xff")
    return Config.model_validate(
        {
            "application_id": "shop",
            "schema_registry": {"url": "https://joe:pass@registry:8081/x?token=t", "basic.auth.user.info": "joe:pass"},
            "kafka": {"bootstrap.servers": "h:9092", "sasl.password": "pass"},
            "topics": {
                "orders": {"partitions": 3, "default_command": "publish", "foreign_partition": "accept"},
                "trades": {"key": ["/a", "/b/c"], "message_type": "msgpack"},
                "quotes": {"message_type": "avro", "schema": str(avro), "key_format": "int"},
                "registered": {"message_type": "avro"},
                "frames": {
                    "message_type": "protobuf",
                    "key": "explicit",
                    "schema": {"file": str(protobuf), "message": "p.M"},
                },
                "lines": {"message_type": "fix", "separator": "|", "parts": []},
            },
            "conflated": {"orders_5s": {"underlying": "orders"}, "orders_1m": {"underlying": "orders_5s"}},
            "processors": {"counts": {"use": "count", "topic": {"partitions": 2}}},
        }
    )


def written(config: Config) -> dict[str, Description]:
    """The descriptions as they are read back from Kafka."""
    return {name: Description.from_json(item.to_json()) for name, item in describe(config).items()}


def test_a_reader_gets_the_settings_that_it_needs(tmp_path):
    """Settings derived from the descriptions equal the original ones for every topic, schema included."""
    ours = settings(tmp_path)
    theirs = described_topics(
        Config.model_validate({"kafka": {"bootstrap.servers": "h:9092"}}), DirectoryEntries(written(ours), {})
    )
    assert theirs.application_id == "shop"
    assert theirs.is_from_directory
    for name in ("orders", "trades", "quotes", "frames", "lines", "orders_5s", "orders_1m", "counts"):
        assert theirs.root(name) == ours.root(name)
        assert theirs.underlying(name) == ours.underlying(name)
        mine, yours = ours.topic(name), theirs.topic(name)
        same = {"message_schema"}
        assert mine.model_dump(exclude=same) == yours.model_dump(exclude=same)
    quotes, frames = theirs.topic("quotes").message_schema, theirs.topic("frames").message_schema
    assert json.loads(quotes.content()) == json.loads(AVRO)
    assert (frames.content(), frames.message) == (b"\x0a\x02hi\xff", "p.M")
    assert theirs.topic("registered").message_schema.subject == "registered.publish-value"
    assert theirs.schema_registry == {"url": "https://registry:8081/x"}


def test_a_description_has_no_secrets(tmp_path):
    """A description has no credentials of Kafka or the registry, also not in an address."""
    for description in describe(settings(tmp_path)).values():
        for secret in (b"pass", b"joe", b"token"):
            assert secret not in description.to_json()


def test_unknown_fields_are_ignored_and_a_newer_format_is_an_error():
    """Unknown fields are ignored; a newer format number is an error that asks for an upgrade."""
    tree = {"format": 1, "kind": "topic", "partitions": 2, "key": ["/id"], "message_type": "json", "colour": "red"}
    assert Description.from_json(json.dumps(tree).encode()).partitions == 2
    with pytest.raises(
        NewerFormat, match=r"has format 3, and this version of Sowstream reads formats up to 2; upgrade"
    ):
        Description.from_json(json.dumps({**tree, "format": 3, "key": 7}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":1,"partitions":0,"key":[],"x":1}'])
def test_rubbish_is_told(data):
    """A record that is no description is an error that names the topic directory and the command that rewrites it."""
    with pytest.raises(Unreadable, match=r"topic directory .*`sowstream topics apply` writes it again"):
        Description.from_json(data)


def test_one_that_cannot_be_used_costs_its_topic_alone(tmp_path):
    """An unreadable description, an unknown kind and a missing underlying topic are errors of those topics only."""
    described = written(settings(tmp_path))
    described["world"] = described["orders"].model_copy(update={"kind": "riddle"})
    described["loop"] = described["orders_5s"].model_copy(update={"derived_from": "loop"})
    described["orphan"] = described["orders_5s"].model_copy(update={"derived_from": "nothing"})
    config = described_topics(Config(), DirectoryEntries(described, {"new": "its description has format 9"}))
    for name, problem in {
        "world": "'riddle'.*upgrade Sowstream",
        "loop": "loop → loop",
        "orphan": "'nothing', which the topic directory does not describe",
        "new": "format 9",
        "nobody": "so these are the topics of the topic directory",
    }.items():
        with pytest.raises(ConfigurationError, match=problem):
            config.topic(name)
    assert config.topic("orders").partitions == 3


def test_several_registries_or_applications_are_not_guessed(tmp_path):
    """If topics differ in it, the application id stays the reader's own, and no registry is used."""
    described = written(settings(tmp_path))
    described["other"] = described["orders"].model_copy(
        update={"application_id": "bank", "registry": "http://elsewhere:8081"}
    )
    config = described_topics(Config(), DirectoryEntries(described, {}))
    assert (config.application_id, config.schema_registry) == ("sowstream", {})


def test_own_settings_beat_what_the_directory_says_of_all(tmp_path):
    """An application id and a registry in the reader's settings are kept, credentials included."""
    own = {"application_id": "desk", "schema_registry": {"url": "https://proxy", "basic.auth.user.info": "a:b"}}
    config = described_topics(Config.model_validate(own), DirectoryEntries(written(settings(tmp_path)), {}))
    assert config.application_id == "desk"
    assert config.schema_registry == own["schema_registry"]


def test_a_schema_file_that_is_missing_is_told():
    """A missing schema file is an error: the directory cannot be written without its content."""
    config = Config.model_validate({"topics": {"q": {"message_type": "avro", "schema": "/nowhere.avsc"}}})
    with pytest.raises(ConfigurationError, match=r"topic .q.: the schema /nowhere\.avsc cannot be read"):
        describe(config)


def test_a_schema_stands_in_one_place():
    """Settings with a schema in two places, or with invalid Base64, are refused."""
    with pytest.raises(ValueError, match="file and text both say what the schema is"):
        SchemaConfig(file=Path("a"), text="b")
    with pytest.raises(ValueError, match="base64 is not Base64"):
        SchemaConfig(base64="a!")
    assert SchemaConfig(base64=base64.b64encode(b"\xff").decode()).content() == b"\xff"


def test_names_of_their_own_are_described_in_a_format_that_older_readers_refuse():
    """Mapped topic names are described in a format that older readers refuse, as they would look for other topics."""
    topics = {"orders": {"kafka_topics": {"publish": "legacy.in"}}, "prices": {}}
    conflated = {"slow": {"underlying": "orders", "kafka_topics": {"sow": "slow.state"}}}
    config = Config(kafka=KAFKA, topic_prefix="acme.", topics=topics, conflated=conflated)
    described = describe(config)
    assert {name: description.format for name, description in described.items()} == {
        "orders": 2, "slow": 2, "prices": 1,
    }  # fmt: skip
    read = {name: Description.from_json(description.to_json()) for name, description in described.items()}
    reader = described_topics(Config(kafka=KAFKA, topic_prefix="acme."), DirectoryEntries(read, {}))
    assert reader.kafka_names == config.kafka_names
    old = json.loads(described["prices"].to_json())
    old.pop("kafka_topics", None)
    assert Description.from_json(json.dumps(old).encode()) == described["prices"]


def test_a_worker_with_other_names_than_the_directory_says_is_refused():
    """A worker whose topic names differ from the directory is refused: its readers would look elsewhere."""
    ours = describe(Config(topics={"orders": {"kafka_topics": {"sow": "a"}}}))["orders"]
    theirs = describe(Config(topics={"orders": {}}))["orders"]
    (problem,) = contradictions({"orders": ours}, DirectoryEntries({"orders": theirs}, {}), ["orders"])
    assert (problem.severity, problem.what.partition(" in the settings")[0]) == ("refuse", "kafka_topics is sow: a")
    assert "and none in the topic directory" in problem.what


def compared_config(**topic):
    """Settings of one topic with a conflated copy."""
    application = topic.pop("application_id", "shop")
    underlying = topic.pop("underlying", "orders")
    return Config.model_validate(
        {
            "application_id": application,
            "topics": {"orders": topic, "others": {}},
            "conflated": {"slow": {"underlying": underlying}},
        }
    )


@pytest.mark.parametrize(
    ("change", "field", "severity", "ours", "theirs"),
    [
        ({"key": ["/sku"]}, "key", "refuse", "/sku", "/id"),
        ({"key": "explicit"}, "key", "refuse", "explicit", "/id"),
        ({"message_type": "msgpack"}, "message_type", "refuse", "msgpack", "json"),
        ({"partitions": 7}, "partitions", "refuse", "7", "4"),
        ({"separator": "|"}, "separator", "refuse", "|", r"'\x01'"),
        ({"parts": ["json"]}, "parts", "refuse", "json", "none"),
        ({"key_format": "json"}, "key_format", "refuse", "json", "text"),
        ({"application_id": "bank"}, "application_id", "warn", "bank", "shop"),
        ({"default_command": "publish"}, "default_command", "warn", "publish", "delta_publish"),
        ({"foreign_partition": "accept"}, "foreign_partition", "warn", "accept", "move"),
    ],
)
def test_a_contradiction_has_both_values(change, field, severity, ours, theirs):
    """A difference that readers would misunderstand is refused, any other is a warning; each has both values."""
    entries = DirectoryEntries(describe(compared_config()), {})
    (problem,) = contradictions(describe(compared_config(**change)), entries, ["orders"])
    assert (problem.severity, problem.topic) == (severity, "orders")
    assert problem.what.startswith(f"{field} is {ours} in the settings and {theirs} in the topic directory")
    assert "sowstream topics apply" in problem.to_do


@pytest.mark.parametrize(("sow", "severity"), [(False, "refuse"), (True, "warn")])
def test_a_topic_may_get_a_sow_and_not_lose_it(sow, severity):
    """Without SOW its records would miss updates; those of a topic that gets one were passed through, and are there."""
    ours, theirs = (describe(Config(topics={"orders": {"sow": each}}), ["orders"]) for each in (sow, not sow))
    (problem,) = contradictions(ours, DirectoryEntries(theirs, {}), ["orders"])
    assert (problem.severity, problem.what.partition(" in the settings")[0]) == (severity, f"sow is {sow}")


def with_schema(schema=None, message_type="avro", registry=None, parts=()):
    """The description of a topic with a schema."""
    topic = {"message_type": message_type, "schema": schema, "parts": parts}
    tree = {"topics": {"q": topic}, "schema_registry": {} if registry is None else {"url": registry}}
    return describe(Config.model_validate(tree))["q"]


def in_parts(schema, part):
    """The same of a composite, whose second part has the schema."""
    return with_schema(schema, "composite-local", parts=["json", part])


DOCUMENTED = AVRO.replace('"long"', '"long", "doc": "its number", "default": 0')


def proto(fields: str, states: str = "NEW:0 HELD:1"):
    """The schema of a message with the fields `name:number:TYPE`, where ENUM has the states, and with one of itself."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p")
    message = file.message_type.add(name="M")
    for name, number, kind in (field.split(":") for field in f"{fields} next:99:MESSAGE".split()):
        field = message.field.add(name=name, number=int(number), label="LABEL_OPTIONAL", type=f"TYPE_{kind}")
        if kind in {"ENUM", "MESSAGE"}:
            field.type_name = ".p.State" if kind == "ENUM" else ".p.M"
    kinds = file.enum_type.add(name="State")
    for name, number in (state.split(":") for state in states.split()):
        kinds.value.add(name=name, number=int(number))
    content = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return {"base64": base64.b64encode(content).decode(), "message": "p.M"}


FIELDS = "id:1:INT64 qty:2:INT32 state:3:ENUM"
PROTO = proto(FIELDS)


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        (with_schema({"text": AVRO}), with_schema(registry="http://r"), ["schema"]),
        (with_schema(registry="http://r"), with_schema({"text": AVRO}), ["schema"]),
        (with_schema({"text": AVRO}), with_schema({"text": AVRO}, registry="http://r"), ["registry"]),
        (with_schema({"text": AVRO}), with_schema({"text": AVRO.replace("long", "int")}), ["schema"]),
        (with_schema({"text": AVRO}), with_schema({"text": DOCUMENTED}), []),
        (with_schema(registry="http://r"), with_schema(registry="http://s"), []),
        (with_schema(registry="http://r"), with_schema({"subject": "of-its-own"}, registry="http://r"), []),
        (with_schema(message_type="json"), with_schema(message_type="json", registry="http://r"), []),
        (with_schema(PROTO, "protobuf"), with_schema({"subject": "q"}, "protobuf", "http://r"), ["schema"]),
        (with_schema(PROTO, "protobuf"), with_schema(proto(f"{FIELDS} px:4:DOUBLE"), "protobuf"), []),
        (with_schema(PROTO, "protobuf"), with_schema(proto("id:1:INT64"), "protobuf"), []),
        (with_schema(PROTO, "protobuf"), with_schema(proto(FIELDS.replace("qty", "quantity")), "protobuf"), []),
        (with_schema(PROTO, "protobuf"), with_schema(PROTO, "protobuf", "http://r"), []),
        (in_parts({"text": AVRO}, "avro"), in_parts({"text": AVRO.replace("long", "int")}, "avro"), ["schema"]),
        (in_parts({"text": AVRO}, "avro"), in_parts({"text": DOCUMENTED}, "avro"), []),
        (in_parts(PROTO, "protobuf"), in_parts(proto(f"{FIELDS} px:4:DOUBLE"), "protobuf"), []),
        (in_parts(PROTO, "protobuf"), in_parts(proto("id:2:INT64 qty:1:INT32"), "protobuf"), ["schema"]),
    ],
)
def test_a_schema_is_refused_where_it_cannot_read_the_messages(before, after, refused):
    """Frames where there were none, and other fields of Avro without a registry, are refused; other changes pass."""
    found = differences(after, before)
    assert found
    assert [each.field for each in found if each.severity == "refuse"] == refused


@pytest.mark.parametrize(
    ("after", "shown"),
    [
        (proto(FIELDS.replace("INT32", "STRING")), "schema was int32 qty = 2, is string qty = 2"),
        (proto("id:2:INT64 qty:1:INT32"), "schema was int64 id = 1, is int32 qty = 1"),
        (proto("id:1:INT64 qty:7:INT32"), "schema was int32 qty = 2, is int32 qty = 7"),
        (proto(FIELDS, "NEW:0 HELD:2"), "schema was HELD = 1, is HELD = 2"),
    ],
    ids=["type", "swapped", "moved", "state"],
)
def test_another_meaning_of_a_protobuf_field_is_refused(after, shown):
    """Records would be read as something else: the field is named as both schemas declare it."""
    (found,) = differences(with_schema(after, "protobuf"), with_schema(PROTO, "protobuf"))
    assert (found.severity, str(found)) == ("refuse", shown)


def test_what_a_copy_is_derived_from_is_compared():
    """A conflated topic of the same name over another topic is refused."""
    entries = DirectoryEntries(describe(compared_config()), {})
    (problem,) = contradictions(describe(compared_config(underlying="others")), entries, ["slow"])
    assert (problem.severity, problem.what[:61]) == (
        "refuse",
        "derived_from is others in the settings and orders in the topic directory, which readers go by"[:61],
    )


def test_only_the_topics_asked_for_are_compared():
    """Only the topics of a worker are compared: others, and topics without a description, do not stop it."""
    entries = DirectoryEntries({"orders": describe(compared_config())["orders"]}, {})
    assert contradictions(describe(compared_config(key=["/sku"])), entries, ["slow", "others"]) == []


def test_long_values_are_cut_to_where_they_differ():
    """Two schemas are shown as the parts around their first difference."""
    before, after = ("".join(f'{{"f{n}":"{kind}"}}' for n in range(99)) for kind in ("long", "long"))
    after = after.replace('"f50":"long"', '"f50":"string"')
    first, second = (
        describe(Config.model_validate({"topics": {"q": {"message_type": "avro", "schema": {"text": text}}}}))["q"]
        for text in (before, after)
    )
    (difference,) = differences(second, first)
    ours, theirs = difference.shown()
    assert '"f50":"string' in ours
    assert '"f50":"long' in theirs
    assert max(len(ours), len(theirs)) < 70


def test_two_files_with_one_meaning_are_one_schema():
    """White space in an Avro schema is no difference."""
    texts = ('{"type":"record"}', '{\n  "type": "record"\n}')
    first, second = (
        describe(Config.model_validate({"topics": {"q": {"message_type": "avro", "schema": {"text": text}}}}))["q"]
        for text in texts
    )
    assert differences(first, second) == []


def test_only_what_changed_is_written():
    """The first apply writes all descriptions, a second none, and a changed topic only its own, with both values."""
    before, after = compared_config(), compared_config(key=["/sku"])
    entries = DirectoryEntries(describe(before), {})
    assert revise(before, describe(before), None).writes == describe(before)
    assert revise(before, describe(before), entries) == ({}, [])
    revision = revise(after, describe(after), entries)
    assert set(revision.writes) == {"orders", "slow"}
    assert "orders: description changed: key was /id, is /sku." in revision.lines


def test_what_the_settings_no_longer_have_is_left_unless_it_is_pruned():
    """Only descriptions of the same application are ever removed, and only on request."""
    described = describe(compared_config())
    described["foreign"] = described["orders"].model_copy(update={"application_id": "bank"})
    fewer = Config.model_validate({"application_id": "shop", "topics": {"orders": {}}})
    entries = DirectoryEntries(described, {})
    assert revise(fewer, describe(fewer), entries).writes == {}
    assert revise(fewer, describe(fewer), entries, prune=True).writes == {"others": None, "slow": None}


def test_a_topic_that_is_not_as_configured_keeps_its_description():
    """A topic that differs from the settings keeps its description, which readers go on using."""
    after = compared_config(partitions=9)
    entries = DirectoryEntries(describe(compared_config()), {})
    revision = revise(after, describe(after), entries, kept={"orders": "it has 4 partitions", "slow": "it has 4"})
    assert revision.writes == {}
    assert "orders: not described, as it has 4 partitions." in revision.lines


def test_a_description_of_a_newer_version_is_not_overwritten():
    """A description of a newer version is not overwritten; one that is merely broken is."""
    ours = compared_config()
    entries = DirectoryEntries({}, {"orders": "has format 2", "others": "is not JSON"}, frozenset(("orders",)))
    revision = revise(ours, describe(ours), entries)
    assert set(revision.writes) == {"others", "slow"}
