"""The preprocessors `debezium` and `connect`: each kind of change event becomes the right record, or a dead letter."""

import hashlib
import uuid
from base64 import b64encode

import pytest

from processor.builtin.debezium import PLACEHOLDER, debezium
from processor.errors import ConfigurationError
from tests.builtin.change_events import converted, envelope, key, written
from tests.builtin.merging import bodies, merging, rejected, told

SETTINGS = {"key_format": "json", "preprocess": ["debezium"], "null_policy": "set", "merge_depth": 1}
UNWRAPPED = {**SETTINGS, "preprocess": [{"use": "debezium", "settings": {"unwrapped": True}}]}
OLD, NEW = {"id": 7, "name": "tea", "notes": None}, {"id": 7, "name": "mate", "notes": "hot"}


def states(driver):
    """The records that the SOW topic was given, None for a tombstone."""
    return bodies(driver.pending_output("sow"))


@pytest.mark.parametrize("has_schema", [False, True], ids=["plain", "schema"])
@pytest.mark.parametrize("connector", ["postgresql", "mysql"])
def test_a_table_is_followed_from_snapshot_to_delete(connector, has_schema):
    """A row read by a snapshot, updated, deleted and created again is the same row in the SOW topic at every step."""
    # Postgres tells only the key of the old row, MySQL all of it.
    before = {"id": 7, "name": None, "notes": None} if connector == "postgresql" else NEW
    events = [
        envelope("r", None, OLD, connector),
        envelope("u", None if connector == "postgresql" else OLD, NEW, connector),
        envelope("d", before, None, connector),
        None,  # The tombstone of `tombstones.on.delete`.
        envelope("c", None, {"id": 7}, connector),
    ]
    driver = merging(**SETTINGS)
    for event in events:
        value = event and (converted(event, connector) if has_schema else event)
        driver.pipe_input(key(7, with_schema=has_schema), value and written(value))
    assert rejected(driver) == []
    assert states(driver) == [OLD, NEW, None, {"id": 7}]
    assert {record.key for record in driver.pending_output("sow")} == {b"7"}
    assert bodies(driver.pending_output("delta")) == [OLD, NEW, {"id": 7}, {"id": 7}]
    driver.commit()
    assert driver.events["delete_of_nothing"] == 1


def test_an_update_replaces_the_row():
    """A column that an event does not have is gone from the record, and a null is a null."""
    driver = merging(**SETTINGS)
    driver.pipe_input(key(7), written(envelope("c", None, {"id": 7, "name": "tea", "dropped": 1})))
    driver.pipe_input(key(7), written(envelope("u", None, {"id": 7, "name": None})))
    assert states(driver)[1] == {"id": 7, "name": None}
    assert told(driver.pending_output("delta")[1])["removed"] == '["/dropped"]'


def test_an_unavailable_value_leaves_the_record_its_own():
    """An update of Postgres without an unchanged TOAST column keeps it, and changes the others as the row has them."""
    driver = merging(**SETTINGS)
    first = {"id": 7, "name": "tea", "notes": "n" * 9000, "tags": {"a": "1", "b": "2"}}
    driver.pipe_input(key(7), written(envelope("c", None, first)))
    after = {"id": 7, "name": None, "notes": PLACEHOLDER, "tags": {"b": "3"}}
    driver.pipe_input(key(7), written(envelope("u", None, after)))
    assert rejected(driver) == []
    assert states(driver)[1] == {"id": 7, "name": None, "notes": "n" * 9000, "tags": {"b": "3"}}


@pytest.mark.parametrize("setting", [PLACEHOLDER, "hex:ff21", "none"])
def test_the_placeholder_is_recognised_in_every_type_of_column(setting):
    """Debezium writes it as a text, Base64 or hexadecimal bytes, in arrays, as an hstore: each is no value."""
    data = bytes.fromhex("ff21") if setting == "hex:ff21" else setting.encode()
    text = data.decode(errors="replace")
    name = str(uuid.UUID(bytes=hashlib.md5(data).digest(), version=3))
    columns = [
        text, b64encode(data).decode(), data.hex(), [text], [b64encode(data).decode()], [name],
        [byte - 256 if byte > 127 else byte for byte in data], {text: text}, f'{{"{text}":"{text}"}}', data,
    ]  # fmt: skip
    others = [None, "", [], {}, [text, text], {text: ""}, text + "x", 0, [[text]], True]
    preprocess = debezium(placeholder=setting)
    row = {f"c{n}": value for n, value in enumerate([*columns, *others])}
    body, command = preprocess(envelope("u", None, row))
    assert (body, command) == ({f"c{n}": value for n, value in enumerate(others, len(columns))}, "delta_publish")
    body, command = debezium(placeholder=None)(envelope("u", None, row))
    assert (body, command) == (row, "publish")


@pytest.mark.parametrize("more", [{"merge_depth": None}, {"null_policy": "ignore"}, {"null_policy": "remove"}])
def test_a_topic_under_which_unavailable_values_would_go_wrong_is_refused(more):
    """Nulls must be set and objects replaced; without a placeholder nothing is a delta, and any topic will do."""
    [name] = more
    with pytest.raises(ConfigurationError, match=f"orders: preprocessor 'debezium' needs {name}: "):
        merging(**SETTINGS | more)
    merging(**SETTINGS | more | {"preprocess": [{"use": "debezium", "settings": {"placeholder": None}}]})


@pytest.mark.parametrize(
    ("event", "reason", "why"),
    [
        (envelope("t", None, None), "unknown_command", "a truncate event (op 't') is of no row"),
        (envelope("m", None, None, message={"prefix": "p", "content": "YQ=="}), "unknown_command", "(op 'm')"),
        (envelope("x", None, NEW), "schema_mismatch", "no change event: its op is 'x'"),
        (envelope("c", None, None), "schema_mismatch", "the event of op 'c' has no object `after`"),
        (envelope("c", None, '{"_id":1}'), "schema_mismatch", "MongoDB"),
        (NEW, "schema_mismatch", "no change event: its op is None; a row without an envelope needs unwrapped: true"),
        ({"op": ["c"]}, "schema_mismatch", "no change event: its op is ['c']"),
        ({"schema": None, "payload": 5}, "not_an_object", "the payload is 5"),
    ],
)
@pytest.mark.parametrize("kafka_key", [key(7), None], ids=["keyed", "no key"])
def test_an_event_that_changes_no_row_is_rejected(event, reason, why, kafka_key):
    """Truncates, messages and other records change nothing, and go to the dead-letter topic with a reason."""
    driver = merging(**SETTINGS)
    driver.pipe_input(key(7), written(envelope("c", None, OLD)))
    driver.pipe_input(kafka_key, written(event))
    [letter] = rejected(driver)
    assert letter[0] == reason
    assert why in letter[1]
    assert states(driver) == [OLD]


@pytest.mark.parametrize("settings", [SETTINGS, UNWRAPPED], ids=["events", "unwrapped"])
def test_an_event_without_a_kafka_key_is_refused(settings):
    """Events of a table without a primary key have no order, so none is merged under the key fields of its row."""
    driver = merging(**settings)
    row = NEW if settings is UNWRAPPED else envelope("c", None, NEW)
    driver.pipe_input(None, written(converted(row)))
    [(reason, detail)] = rejected(driver)
    assert (reason, "message.key.columns" in detail) == ("missing_key", True)
    assert driver.pending_output("publish") == []


@pytest.mark.parametrize("value", [{"scale": 1, "value": "Cw=="}, 1.5, None])
def test_a_key_that_is_no_key_says_how_to_write_it(value):
    """A NUMERIC in a Kafka key is an object or a decimal number by default, and its dead letter names the setting."""
    driver = merging(**SETTINGS)
    driver.pipe_input(written({"id": value}), written(envelope("c", None, {"id": value})))
    [(reason, detail)] = rejected(driver)
    assert reason == "missing_key"
    assert "/id is " in detail
    assert detail.endswith("with decimal.handling.mode: string")


def test_keys_of_several_columns():
    """A table with a primary key of two columns has records with the text of both as their key."""
    driver = merging(**SETTINGS, key=["/id", "/name"])
    row = {"name": "tea", "id": 7, "notes": "x"}
    kafka_key = written({"name": "tea", "id": 7})
    for event in (envelope("c", None, row), envelope("d", {"id": 7, "name": "tea", "notes": None}, None)):
        driver.pipe_input(kafka_key, written(event))
    assert rejected(driver) == []
    assert [record.key for record in driver.pending_output("sow")] == [b'["7","tea"]'] * 2
    assert states(driver)[1] is None


def test_a_changed_primary_key_is_a_delete_and_a_create():
    """Debezium writes both events with headers of its own, which travel on with the new record."""
    driver = merging(**SETTINGS)
    driver.pipe_input(key(7), written(envelope("c", None, OLD)))
    driver.pipe_input(key(7), written(envelope("d", OLD, None)), {"__debezium.newkey": key(8)})
    driver.pipe_input(key(7), None)
    driver.pipe_input(key(8), written(envelope("c", None, {**OLD, "id": 8})), {"__debezium.oldkey": key(7)})
    assert rejected(driver) == []
    assert states(driver) == [OLD, None, {**OLD, "id": 8}]
    assert told(driver.pending_output("sow")[2])["__debezium.oldkey"] == '{"id":7}'


class TestUnwrapped:
    """Rows that `ExtractNewRecordState` took out of their events."""

    @pytest.mark.parametrize("has_schema", [False, True], ids=["plain", "schema"])
    def test_rows_are_published_and_rewritten_deletes_delete(self, has_schema):
        """`rewrite` marks each row as deleted or not; the mark is in no record, fields added by the transform stay."""
        driver = merging(**UNWRAPPED)
        rows = [
            {**OLD, "__deleted": "false", "__lsn": 1},
            {"id": 7, "name": None, "notes": PLACEHOLDER, "__deleted": "false"},
            {"id": 7, "name": None, "notes": None, "__deleted": "true"},
            {**NEW, "__op": "c"},
            {"id": 7, "__op": "d"},
        ]
        for row in rows:
            driver.pipe_input(key(7, with_schema=has_schema), written(converted(row) if has_schema else row))
        assert rejected(driver) == []
        assert states(driver) == [
            {**OLD, "__lsn": 1}, {"id": 7, "name": None, "notes": None, "__lsn": 1}, None, NEW, None,
        ]  # fmt: skip

    def test_deletes_that_became_tombstones_delete(self):
        """With the transform's default a delete is a null, and with old converters a null payload."""
        driver = merging(**UNWRAPPED)
        for value in (OLD, None, NEW, {"schema": None, "payload": None}):
            driver.pipe_input(key(7), value and written(value))
        assert states(driver) == [OLD, None, NEW, None]

    def test_a_whole_event_is_no_row(self):
        """Without the transform each event is rejected with advice, and the state has no record."""
        driver = merging(**UNWRAPPED)
        driver.pipe_input(key(7), written(converted(envelope("c", None, NEW))))
        driver.pipe_input(key(7), written({"__op": "t"}))
        assert [reason for reason, _ in rejected(driver)] == ["schema_mismatch", "unknown_command"]
        assert "let ExtractNewRecordState take the row out" in rejected(driver)[0][1]


class TestConnect:
    """The preprocessor `connect`, for records of any connector."""

    def test_the_payload_is_the_message_and_the_command_is_the_publishers(self):
        """A schema beside the record is dropped; without one the record stays as it is; a null payload deletes."""
        driver = merging(key_format="json", preprocess=["connect"])
        for value, headers in [
            (converted({"id": 7, "a": 1, "b": 1}), None),
            ({"id": 7, "a": 2}, None),
            ({"schema": None, "payload": {"id": 7, "c": 1}}, {"command": "publish"}),
            ({"schema": None, "payload": None}, None),
        ]:
            driver.pipe_input(key(7, with_schema=True), written(value), headers)
        assert states(driver) == [{"id": 7, "a": 1, "b": 1}, {"id": 7, "a": 2, "b": 1}, {"id": 7, "c": 1}, None]

    def test_two_columns_of_these_names_are_no_wrapper(self):
        """A wrapper has a schema and a payload, and nothing else; any other record with such fields is a record."""
        driver = merging(key=["/schema"], preprocess=["connect"])
        rows = [
            {"schema": "public", "payload": {"type": "x"}},
            {"schema": "public", "payload": {"a": 1}, "more": 1},
            {"payload": {"a": 2}},
        ]
        for row in rows:
            driver.pipe_input("public", row, {"command": "publish"})
        assert rejected(driver) == []
        assert states(driver) == [*rows[:2], {**rows[2], "schema": "public"}]


@pytest.mark.parametrize(
    "settings",
    [{"placeholder": ""}, {"placeholder": "hex:x"}, {"unwrapped": "yes"}, {"incomplete": "maybe"}, {"ops": "c"}],
)
def test_bad_settings_are_refused(settings):
    """A setting that has no meaning stops the start, by name."""
    with pytest.raises(ConfigurationError, match="orders: preprocessor 'debezium' does not take its settings: "):
        merging(**SETTINGS | {"preprocess": [{"use": "debezium", "settings": settings}]})


class TestUnavailable:
    """Events without a value, where no record has it."""

    @pytest.mark.parametrize("op", ["c", "r", "u"])
    @pytest.mark.parametrize("name", ["notes", "tags"])
    def test_a_row_that_would_lack_a_column_is_rejected(self, op, name):
        """The create of a changed primary key without a large value is a dead letter that names the column."""
        driver = merging(**SETTINGS)
        value = PLACEHOLDER if name == "notes" else [b64encode(PLACEHOLDER.encode()).decode()]
        driver.pipe_input(key(7), written(envelope("c", None, {"id": 7, "notes": "n" * 9000, "tags": ["x"]})))
        driver.pipe_input(key(7), written(envelope("d", {"id": 7}, None)), {"__debezium.newkey": key(8)})
        driver.pipe_input(key(7), None)
        row = {"id": 8, "notes": "n", "tags": [], name: value}
        driver.pipe_input(key(8), written(envelope(op, None, row)), {"__debezium.oldkey": key(7)})
        [(reason, detail)] = rejected(driver)
        assert reason == "schema_mismatch"
        assert detail.startswith(f"the message does not have the value of {name}, and there is no record that has it")
        assert states(driver)[-1] is None
        driver.pipe_input(key(8), written(envelope("u", None, row | {name: "whole"})))
        assert states(driver)[-1] == row | {name: "whole"}

    def test_it_can_be_stored_and_is_counted(self):
        """With `incomplete: store` the row is a record without the column; it and later such updates are events."""
        driver = merging(**SETTINGS | {"preprocess": [{"use": "debezium", "settings": {"incomplete": "store"}}]})
        for number in (1, 2):
            driver.pipe_input(key(8), written(envelope("u", None, {"id": 8, "n": number, "notes": PLACEHOLDER})))
        driver.pipe_input(key(8), written(envelope("u", None, {"id": 8, "n": 3, "notes": "whole"})))
        driver.pipe_input(key(8), written(envelope("u", None, {"id": 8, "n": 4, "notes": PLACEHOLDER})))
        assert rejected(driver) == []
        assert states(driver) == [
            {"id": 8, "n": 1}, {"id": 8, "n": 2},
            {"id": 8, "n": 3, "notes": "whole"}, {"id": 8, "n": 4, "notes": "whole"},
        ]  # fmt: skip
        driver.commit()
        assert driver.events["incomplete_row"] == 2

    def test_a_record_that_ends_in_between_is_no_record(self):
        """An update without a value is rejected after a delete or the expiry of its record, also unwrapped."""
        driver = merging(**UNWRAPPED, expiration="1s")
        driver.pipe_input(key(7), written({"id": 7, "notes": "n", "__deleted": "false"}))
        driver.advance_time(1000)
        driver.pipe_input(key(7), written({"id": 7, "notes": PLACEHOLDER, "__deleted": "false"}))
        assert [reason for reason, _ in rejected(driver)] == ["schema_mismatch"]


@pytest.mark.parametrize(
    ("message", "kafka_key"),
    [
        ({"ts_ms": 1700000000000}, {"serverName": "shop"}),
        ({"ts_ms": 1700000000000}, None),
        ({"status": "BEGIN", "id": "571:53", "ts_ms": 1, "event_count": None, "data_collections": None}, {"id": "571"}),
        (
            {"source": {}, "ts_ms": 1, "databaseName": "shop", "ddl": "DROP", "tableChanges": []},
            {"databaseName": "shop"},
        ),
    ],
)
@pytest.mark.parametrize("settings", [SETTINGS, UNWRAPPED], ids=["events", "unwrapped"])
def test_other_messages_of_debezium_are_no_rows(message, kafka_key, settings):
    """Heartbeats, transaction boundaries and schema changes that a router brings to the topic make no record."""
    driver = merging(**settings)
    for value in (message, converted(message)):
        driver.pipe_input(None if kafka_key is None else written(kafka_key), written(value))
    assert len(rejected(driver)) == 2
    assert driver.pending_output("sow") == driver.pending_output("publish") == []


class TestMongo:
    """Documents of MongoDB, whose Kafka keys name `_id` `id`."""

    @pytest.mark.parametrize(
        ("in_key", "in_document", "text"),
        [
            ("596e275826f08b2730779e1f", "596e275826f08b2730779e1f", b"596e275826f08b2730779e1f"),
            ('{"$oid" : "596e275826f08b2730779e1f"}', "596e275826f08b2730779e1f", b"596e275826f08b2730779e1f"),
            ({"$oid": "596e275826f08b2730779e1f"}, "596e275826f08b2730779e1f", b"596e275826f08b2730779e1f"),
            ("1004", 1004, b"1004"),
            (1004, 1004, b"1004"),
            ('{"$numberLong": "1004"}', 1004, b"1004"),
            ('"MyKey"', "MyKey", b"MyKey"),
            ("{not JSON", "{not JSON", b"{not JSON"),
        ],
    )
    def test_keys_are_mapped(self, in_key, in_document, text):
        """A document is found under its `_id`, as a text, a number or an ObjectId in extended JSON; deletes find it."""
        driver = merging(**UNWRAPPED | {"key": ["/_id"], "key_names": {"/_id": "id"}})
        for kafka_key in ({"id": in_key}, {"schema": {"type": "struct"}, "payload": {"id": in_key}}):
            driver.pipe_input(written(kafka_key), written({"_id": in_document, "n": 1}))
            driver.pipe_input(written(kafka_key), None)
        assert rejected(driver) == []
        assert [record.key for record in driver.pending_output("sow")] == [text] * 4
        assert states(driver) == [{"_id": in_document, "n": 1}, None] * 2

    def test_a_key_of_several_fields_is_mapped_in_part(self):
        """A name maps one key field, the others are found under their own."""
        driver = merging(**UNWRAPPED | {"key": ["/_id", "/shard/no"], "key_names": {"/_id": "id"}})
        driver.pipe_input(written({"shard": {"no": 2}, "id": "a"}), written({"_id": "a", "shard": {"no": 2}}))
        driver.pipe_input(written({"_id": "a", "shard": {"no": 2}}), written({"_id": "a", "shard": {"no": 2}}))
        assert [record.key for record in driver.pending_output("sow")] == [b'["a","2"]']
        [(reason, detail)] = rejected(driver)
        assert reason == "missing_key"
        assert "does not have the key fields id, /shard/no; key_names maps other names" in detail

    @pytest.mark.parametrize(
        ("more", "why"),
        [
            ({"key_format": "text"}, "key_names is for key_format: json"),
            ({"key_names": {"/x": "id"}}, "'/x' is no key field; those are /_id"),
        ],
    )
    def test_names_of_other_fields_are_refused(self, more, why):
        """A name for a field that is no key field, or for keys without names, is refused at the start."""
        with pytest.raises(ValueError, match=why):
            merging(**UNWRAPPED | {"key": ["/_id"], "key_names": {"/_id": "id"}} | more)
