"""Queues over a SOW topic get the merged records, in the transaction of the merge (queues.md, rules 1 and 2)."""

from __future__ import annotations

import json
import random

import pytest

from processor.builtin.delta_merge import plain
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import QueueConfig, TopicConfig
from processor.errors import ConfigurationError
from processor.queues.filler import check_queue
from processor.testing import ProcessorTestDriver
from tests.builtin.merging import told

PAID = "/state = 'paid'"


def filled(*, filters=(PAID,), partitions: int = 1, batch_bytes_max: int = 1 << 24, **settings) -> ProcessorTestDriver:
    """A merge with a queue for each filter, named q0, q1 and so on."""
    topic = TopicConfig(**settings)
    queues = {f"q{n}": QueueConfig(underlying="orders", filter=text) for n, text in enumerate(filters)}
    return ProcessorTestDriver(
        DeltaMerge, topic, name="orders", topic=topic, queues=queues, partitions=partitions,
        batch_bytes_max=batch_bytes_max,
    )  # fmt: skip


def messages(driver: ProcessorTestDriver, queue: str = "q0") -> list[tuple[str, dict, str]]:
    """Key, record and source of each committed message of a queue."""
    return [
        (record.key.decode(), json.loads(record.value), told(record)["source"])
        for record in driver.read_output(f"{queue}.queue")
    ]


def test_each_update_that_matches_is_one_message_with_the_merged_record():
    """A delta that makes the record match, and each update of a record that matches, puts the full record there."""
    driver = filled()
    driver.pipe_batch([
        ("7", {"id": 7, "qty": 3, "state": "new"}, None),
        ("7", {"id": 7, "state": "paid"}, None),
        ("8", {"id": 8, "state": "paid"}, {"command": "publish", "trace": "t"}),
        ("7", {"id": 7, "qty": 4}, None),
        ("7", {"id": 7, "state": "sent"}, None),
    ])  # fmt: skip
    driver.commit()
    assert messages(driver) == [
        ("7", {"id": 7, "qty": 3, "state": "paid"}, "orders.publish/0/1"),
        ("8", {"id": 8, "state": "paid"}, "orders.publish/0/2"),
        ("7", {"id": 7, "qty": 4, "state": "paid"}, "orders.publish/0/3"),
    ]
    sow = driver.read_output("sow")
    wanted = [told(sow[place]) | {"source": f"orders.publish/0/{place}"} for place in (1, 2, 3)]
    assert [told(record) for record in driver.read_output("q0.queue")] == wanted


def test_deletes_and_expiries_put_nothing_and_take_nothing_away():
    """A record that is deleted or expires leaves its message where it is, and adds none."""
    driver = filled(expiration="1s")
    driver.pipe_batch([("7", {"id": 7, "state": "paid"}, None), ("8", {"id": 8, "state": "paid"}, None)])
    driver.pipe_input("7", None)
    driver.commit()
    driver.advance_time(5_000)
    driver.commit()
    assert driver.events["expired"] == 1
    assert [key for key, _, _ in messages(driver)] == ["7", "8"]


def test_a_record_that_was_over_expires_first_and_only_the_new_one_is_a_message():
    """An update that finds its record over is the first of a new record: one message, with the update's source."""
    driver = filled(expiration="1s")
    driver.pipe_input("7", {"id": 7, "state": "paid", "old": 1})
    driver.commit()
    driver.append_input(b"7", b'{"id":7,"state":"paid"}', None)
    driver.now_ms += 5_000
    driver.input[-1] = driver.input[-1]._replace(timestamp_ms=driver.now_ms)
    driver.feed()
    driver.commit()
    assert messages(driver)[1:] == [("7", {"id": 7, "state": "paid"}, "orders.publish/0/1")]


def test_a_delete_by_filter_ends_a_batch_and_loses_no_message():
    """Records in front of a delete by filter and behind it are messages with their own sources."""
    driver = filled()
    driver.pipe_batch([
        ("7", {"id": 7, "state": "paid"}, None),
        (None, None, {"command": "sow_delete", "filter": "/id = 7"}),
        ("8", {"id": 8, "state": "paid"}, None),
    ])  # fmt: skip
    driver.commit()
    assert [(key, source) for key, _, source in messages(driver)] == [
        ("7", "orders.publish/0/0"),
        ("8", "orders.publish/0/2"),
    ]


def test_several_queues_each_have_their_own_records():
    """A queue without a filter has every update, next to queues with filters."""
    driver = filled(filters=(PAID, None, "/qty > 2"))
    driver.pipe_batch([("7", {"id": 7, "qty": 3}, None), ("7", {"id": 7, "state": "paid", "qty": 1}, None)])
    driver.commit()
    counts = [len(driver.read_output(f"q{n}.queue")) for n in range(3)]
    assert counts == [1, 2, 1]


def test_a_rolled_back_transaction_leaves_no_message():
    """After an abort and a crash each message is there once, as its SOW record is."""
    driver = filled()
    driver.pipe_batch([("7", {"id": 7, "state": "paid"}, None)])
    driver.abort()
    driver.crash()
    assert driver.read_output("q0.queue") == []
    driver.commit()
    assert [source for _, _, source in messages(driver)] == ["orders.publish/0/0"]


def test_rejected_commands_duplicates_and_conflicts_put_nothing():
    """Only commands that write a SOW record put a message; the sources of the others are not shifted."""
    driver = filled()
    own = {"client": "c", "sequence": "1"}
    driver.pipe_batch([
        ("7", {"id": 7, "state": "paid"}, own),
        ("7", b"{", None),
        ("7", {"id": 7, "state": "paid"}, own),
        ("7", {"id": 7, "n": 1}, {"expect_version": "5"}),
        ("8", {"id": 7, "state": "paid"}, None),
        ("8", {"id": 8, "state": "paid"}, None),
    ])  # fmt: skip
    driver.commit()
    assert [(key, source) for key, _, source in messages(driver)] == [
        ("7", "orders.publish/0/0"),
        ("8", "orders.publish/0/5"),
    ]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("default_command", ["delta_publish", "publish"])
def test_every_way_to_merge_gives_the_same_messages(monkeypatch, random_seed, compiled, default_command):
    """Random commands, plain ones and others, in small batches: each SOW record that matches is a message, once.

    With `source_header` a SOW record names its input record itself, and all records are merged in parts; the messages
    of the compiled fold and of the merge in parts are the same.
    """
    monkeypatch.setattr(plain, "has_compiled", compiled and plain.has_compiled)
    rng = random.Random(random_seed)
    driver = filled(batch_bytes_max=700, default_command=default_command)
    reference = filled(source_header=True, default_command=default_command)
    for _ in range(30):
        batch = []
        for _ in range(rng.randrange(1, 12)):
            key = rng.choice("789")
            body = {"id": int(key), "state": rng.choice(["paid", "new"]), "n": rng.randrange(3)}
            headers = rng.choice([None, None, None, {"command": "publish"}, {"command": "delta_publish"}, {"x": "y"}])
            batch.append((key, rng.choice([body, body, body, body, None, b"["]), headers))
        for each in (driver, reference):
            each.pipe_batch(batch)
            each.commit()
    assert len(messages(driver)) > 20
    assert messages(driver) == messages(reference)
    wanted = [
        (told(record)["source"], record.value)
        for record in reference.read_output("sow")
        if record.value is not None and json.loads(record.value).get("state") == "paid"
    ]
    assert [(source, value) for _, value, source in messages(driver)] == [
        (source, json.loads(value)) for source, value in wanted
    ]


def test_a_record_that_a_filter_fails_on_is_a_dead_letter_of_the_queue(monkeypatch):
    """The merge goes on, other queues get the record, and the dead letter has the reason, the record and its source."""
    driver = filled(filters=("LENGTH(/state) > 2", None))

    def fail(*_: object) -> bool:
        raise ZeroDivisionError("of a plug-in")

    [failing] = [queue for queue in driver._task.processor._queues._queues if queue.selected is not None]
    monkeypatch.setattr(type(failing.selected), "matches", fail)
    driver.pipe_input("7", {"id": 7, "state": "paid"})
    driver.commit()
    [letter] = driver.read_output("q0.dlq")
    headers = told(letter)
    assert (headers["dlq_reason"], headers["source"]) == ("plugin_failed", "orders.publish/0/0")
    assert "ZeroDivisionError" in headers["dlq_detail"]
    assert json.loads(letter.value) == {"id": 7, "state": "paid"}
    assert (driver.read_output("q0.queue"), len(driver.read_output("q1.queue"))) == ([], 1)
    assert driver.events == {"queue_filter_failed": 1}


def test_a_topic_without_queues_has_no_filler():
    """Without queues nothing is added to the merge of a batch."""
    topic = TopicConfig()
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    assert driver._task.processor._queues is None


@pytest.mark.parametrize(
    ("text", "problem"), [("/a =", r"queues\.q\.filter: "), ("UNIX_TIMESTAMP() > 5", "changes with the clock")]
)
def test_a_filter_that_cannot_be_used_is_refused_before_the_start(text, problem):
    """A filter that cannot be read, or that changes by itself, is an error of the settings."""
    with pytest.raises(ConfigurationError, match=problem):
        check_queue("q", QueueConfig(underlying="orders", filter=text), None)
