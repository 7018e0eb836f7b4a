"""Each setting and connector configuration in processor/docs/how-to/debezium.md has the documented effect."""

import contextlib
import json
import re

import pytest
import yaml

from processor.builtin.debezium import PLACEHOLDER, debezium
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import Config
from processor.kafka.partitioner import partition_for
from processor.testing import ProcessorTestDriver
from tests.builtin.change_events import converted, envelope, written
from tests.builtin.merging import bodies, rejected, told
from tests.codec.avro_world import World, record
from tests.docs.pages import block, blocks, page
from tests.endtoend.oracle import last_per_key
from tests.endtoend.world import World as Family

PAGE = "how-to/debezium.md"
FIRST = {"id": 7, "name": "tea", "notes": "n" * 9000}
PARTIAL = {"id": 7, "name": None, "notes": PLACEHOLDER}
MERGED = {"id": 7, "name": None, "notes": "n" * 9000}


class Connect:
    """The transforms and key converters that the page uses, for a table `public.orders` of a server `shop`."""

    def __init__(self, config):
        self.config = config
        self.transforms = [name for name in config.get("transforms", "").split(",") if name]

    def write(self, row_key, event):
        """The topic, Kafka key and value of an event; None as a value is a tombstone."""
        topic, key, value = "shop.public.orders", {"id": row_key}, event
        for name in self.transforms:
            topic, key, value = self._transformed(name, topic, key, value)
        converter = self.config.get("key.converter", "org.apache.kafka.connect.json.JsonConverter")
        has_schema = self.config.get("key.converter.schemas.enable", "true") == "true"
        if converter.endswith(".StringConverter"):
            assert not isinstance(key, dict), "it would write Struct{id=7}"
            kafka_key = str(key).encode()
        else:
            kafka_key = written(converted(key) if has_schema else key)
        return topic, kafka_key, value

    def _transformed(self, name, topic, key, value):
        settings = {
            option.removeprefix(f"transforms.{name}."): text
            for option, text in self.config.items()
            if option.startswith(f"transforms.{name}.")
        }
        kind = settings.pop("type").rpartition(".")[2]
        if kind == "RegexRouter":
            if re.fullmatch(settings["regex"], topic):
                topic = re.sub(settings["regex"], settings["replacement"].replace("$", "\\"), topic)
        elif kind == "ExtractField$Key":
            key = key[settings["field"]]
        elif kind == "ExtractNewRecordState":
            value = _row(value, settings["delete.tombstone.handling.mode"])
        else:
            raise AssertionError(f"{kind} is not tried here")
        return topic, key, value


def _row(event, mode):
    """The row that `ExtractNewRecordState` returns for an event."""
    if event is None:
        return None
    is_delete = event["op"] == "d"
    if mode == "rewrite":
        return {**event["before" if is_delete else "after"], "__deleted": str(is_delete).lower()}
    return None if is_delete else event["after"]


def events(*, has_partial):
    """The events of row 7, from its creation to its tombstone."""
    yield envelope("r", None, FIRST)
    yield envelope("u", None, PARTIAL if has_partial else MERGED)
    yield envelope("d", {"id": 7, "name": None, "notes": None}, None)
    yield None


@pytest.mark.broker
def test_events_of_a_connector_end_in_the_partitions_of_their_text_keys(bootstrap, tmp_path, unique):
    """Each row has one record in the partition of its text key, although Connect hashes the JSON key."""
    settings = yaml.safe_load(block(PAGE, "A table", "yaml"))["topics"]["orders"]
    with contextlib.closing(Family(bootstrap, tmp_path, unique, **settings)) as world:
        rows = range(40)
        for event in (
            lambda row: envelope("c", None, {**FIRST, "id": row}),
            lambda row: envelope("u", None, {**PARTIAL, "id": row}),
            lambda row: envelope("d", {"id": row}, None) if row % 4 == 0 else None,
        ):
            world.publish([(written({"id": row}), written(change), {}) for row in rows if (change := event(row))])
        world.publish([(written({"id": row}), None, {}) for row in rows if row % 4 == 0])
        world.start()
        world.settle()
        assert world.read("dlq") == []
        sow = world.read("sow")
    assert last_per_key(sow) == {str(row): {**MERGED, "id": row} for row in rows if row % 4}
    assert {record.partition == partition_for(record.key, 4) for record in sow} == {True}
    assert {partition_for(written({"id": row}), 4) == partition_for(b"%d" % row, 4) for row in rows} == {True, False}


SECTIONS = ["A table", "Text keys", "Rows without their events"]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_topic_follows_its_table(section):
    """With the connector and the settings of a section the record equals the row, also after a partial update."""
    connect = Connect(json.loads(block(PAGE, section, "json")))
    config = Config.model_validate(yaml.safe_load(block(PAGE, section, "yaml")))
    driver = ProcessorTestDriver(DeltaMerge, config.topics["orders"], name="orders", topic=config.topics["orders"])
    for event in events(has_partial=True):
        topic, key, value = connect.write(7, event)
        assert topic == "orders.publish"
        driver.pipe_input(key, value and written(value))
    assert rejected(driver) == []
    assert bodies(driver.pending_output("sow")) == [FIRST, MERGED, None]
    assert {out.key for out in driver.pending_output("sow")} == {b"7"}


def test_events_with_all_values_need_fewer_settings():
    """Without a placeholder each event is a publish, under any settings of the topic."""
    config = Config.model_validate(yaml.safe_load(block(PAGE, "A table", "yaml", 1)))
    driver = ProcessorTestDriver(DeltaMerge, config.topics["orders"], name="orders", topic=config.topics["orders"])
    for event in events(has_partial=False):
        driver.pipe_input(written({"id": 7}), event and written(event))
    assert rejected(driver) == []
    assert bodies(driver.pending_output("sow")) == [FIRST, MERGED, None]


def test_an_avro_topic_follows_its_table():
    """Rows of the registered schema are merged, an unavailable value keeps the old one, and a tombstone deletes."""
    connect = Connect(json.loads(block(PAGE, "Avro", "json")))
    config = Config.model_validate(yaml.safe_load(block(PAGE, "Avro", "yaml")))
    topic = config.topics["orders"]
    row = record(("id", "int"), ("name", ["null", "string"], None), ("notes", ["null", "string"], None), name="Value")
    world = World(row)
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic, registry=world.settings)
    for event in events(has_partial=True):
        _, key, value = connect.write(7, event)
        driver.pipe_input(key, value and world.framed(row, value))
    assert rejected(driver) == []
    values = [out.value and driver._codec.decode_own(out.value) for out in driver.pending_output("sow")]
    assert values == [FIRST, MERGED, None]
    driver.close()


def test_records_of_other_connectors_are_published():
    """A record with its schema in the message replaces the record of its key."""
    config = Config.model_validate(yaml.safe_load(block(PAGE, "Other sources of Connect", "yaml")))
    driver = ProcessorTestDriver(DeltaMerge, config.topics["orders"], name="orders", topic=config.topics["orders"])
    for body in (FIRST, {"id": 7, "name": "x"}):
        driver.pipe_input(written({"id": 7}), written(converted(body)))
    assert bodies(driver.pending_output("sow")) == [FIRST, {"id": 7, "name": "x"}]


def test_the_table_of_events_has_their_outcomes():
    """Each op in the page's table has the outcome of its row."""
    rows = re.findall(r"^\| (`\w`[^|]*) \| (.*) \|$", page(PAGE), re.MULTILINE)
    outcomes = {op: outcome for ops, outcome in rows for op in re.findall(r"`(\w)`", ops)}
    assert set(outcomes) == {"c", "r", "u", "d", "t", "m"}
    topic = Config.model_validate(yaml.safe_load(block(PAGE, "A table", "yaml"))).topics["orders"]
    for op, outcome in outcomes.items():
        driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
        for event in (envelope("c", None, FIRST), envelope(op, {"id": 7}, None if op == "d" else MERGED)):
            driver.pipe_input(written({"id": 7}), written(event))
        if outcome.startswith("rejected"):
            assert [f"`{reason}`" for reason, _ in rejected(driver)] == re.findall(r"rejected as (`\w+`)", outcome)
        else:
            [result] = re.findall(r"`(publish|sow_delete)`", outcome)
            assert (told(driver.pending_output("sow")[1]).get("kind") == "delete") is (result == "sow_delete")


def test_documents_of_mongodb_are_found_under_their_id():
    """With the settings of the page, a document that the connector names `id` in its key is created and deleted."""
    config = Config.model_validate(yaml.safe_load(block(PAGE, "MongoDB", "yaml")))
    driver = ProcessorTestDriver(DeltaMerge, config.topics["orders"], name="orders", topic=config.topics["orders"])
    for value in ({"_id": "596e275826f08b2730779e1f", "qty": 3}, None):
        driver.pipe_input(written({"id": "596e275826f08b2730779e1f"}), None if value is None else written(value))
    assert driver.pending_output("dlq") == []
    assert [record.key for record in driver.pending_output("sow")] == [b"596e275826f08b2730779e1f"] * 2


def test_the_table_of_settings_has_the_preprocessors_settings():
    """Every keyword of the preprocessor is in the table, with its default."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page(PAGE), re.MULTILINE)
    defaults = debezium.__defaults__ or ()
    names = debezium.__code__.co_varnames[: debezium.__code__.co_argcount]
    assert rows == [(name, str(default).lower()) for name, default in zip(names, defaults, strict=True)]


def test_every_block_of_the_page_is_tested():
    """Every block of the page has a test here."""
    tried = [*SECTIONS, "Avro"]
    assert [b.section for b in blocks(PAGE) if b.language == "json"] == tried
    assert [b.section for b in blocks(PAGE) if b.language == "yaml"] == [
        "A table", "A table", "Text keys", "Rows without their events", "MongoDB", "Avro",
        "Other sources of Connect",
    ]  # fmt: skip
