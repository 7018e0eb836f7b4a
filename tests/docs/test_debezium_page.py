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
from tests.builtin.change_events import converted, envelope, recorded, written
from tests.builtin.merging import bodies, rejected, seen, told
from tests.codec.avro_world import World, record
from tests.docs.pages import block, blocks, page
from tests.endtoend.oracle import last_per_key
from tests.endtoend.world import World as Family

PAGE = "how-to/debezium.md"
FIRST = {"id": 7, "name": "tea", "notes": "n" * 9000}
PARTIAL = {"id": 7, "name": None, "notes": PLACEHOLDER}
MERGED = {"id": 7, "name": None, "notes": "n" * 9000}


def events():
    """The events of row 7, from its creation to its tombstone, with all values."""
    yield envelope("r", None, FIRST)
    yield envelope("u", None, MERGED)
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


RECORDED = recorded()


@pytest.mark.parametrize("name", [*SECTIONS, "with schemas"])
def test_a_topic_follows_its_table(name):
    """With the connector and the settings of a section the records are the rows of the table, but for the refused one.

    The records are those of the real connector. Its settings are the page's: who changes them records again.
    """
    section, recording = name if name in SECTIONS else "A table", RECORDED[name]
    assert recording.settings == (json.loads(block(PAGE, name, "json")) if name in SECTIONS else None)
    config = Config.model_validate(yaml.safe_load(block(PAGE, section, "yaml")))
    driver = ProcessorTestDriver(DeltaMerge, config.topics["orders"], name="orders", topic=config.topics["orders"])
    for key, value, headers in recording.records:
        driver.pipe_input(key, value, headers)
    [(reason, detail)] = rejected(driver)
    assert (reason, "the value of notes, and there is no record that has it" in detail) == ("schema_mismatch", True)
    records = last_per_key(seen(driver.pending_output("sow")))
    assert records == {str(row["id"]): row for row in recording.rows if row["id"] != 6}
    assert len(records) == 3


def test_events_without_a_key_are_refused():
    """The events of a table without a primary key are dead letters that say what the connector lacks."""
    config = Config.model_validate(yaml.safe_load(block(PAGE, "A table", "yaml")))
    driver = ProcessorTestDriver(DeltaMerge, config.topics["orders"], name="orders", topic=config.topics["orders"])
    for key, value, headers in RECORDED["without a key"].records:
        driver.pipe_input(key, value, headers)
    letters = rejected(driver)
    assert [reason for reason, _ in letters] == ["missing_key"] * 4 + ["unknown_command"]
    assert all("with message.key.columns" in detail for _, detail in letters[:3])
    assert driver.pending_output("sow") == driver.pending_output("publish") == []


def test_events_with_all_values_need_fewer_settings():
    """Without a placeholder each event is a publish, under any settings of the topic."""
    config = Config.model_validate(yaml.safe_load(block(PAGE, "Large values", "yaml")))
    driver = ProcessorTestDriver(DeltaMerge, config.topics["orders"], name="orders", topic=config.topics["orders"])
    for event in events():
        driver.pipe_input(written({"id": 7}), event and written(event))
    assert rejected(driver) == []
    assert bodies(driver.pending_output("sow")) == [FIRST, MERGED, None]


def test_an_avro_topic_follows_its_table():
    """Rows of the registered schema are merged, an unavailable value keeps the old one, and a tombstone deletes."""
    config = Config.model_validate(yaml.safe_load(block(PAGE, "Avro", "yaml")))
    topic = config.topics["orders"]
    row = record(("id", "int"), ("name", ["null", "string"], None), ("notes", ["null", "string"], None), name="Value")
    world = World(row)
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic, registry=world.settings)
    for value in (FIRST, PARTIAL, None):
        driver.pipe_input("7", value and world.framed(row, value))
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
        "A table", "Large values", "Text keys", "Rows without their events", "MongoDB", "Avro",
        "Other sources of Connect",
    ]  # fmt: skip
